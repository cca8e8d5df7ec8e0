package cloud

import (
	"os"
	"path/filepath"
	"testing"
)

func TestParse(t *testing.T) {
	for path, want := range map[string]Location{
		"s3://bucket":                               {Scheme: S3, Bucket: "bucket"},
		"s3://bucket/":                              {Scheme: S3, Bucket: "bucket"},
		"s3:///bucket//a///b/":                      {Scheme: S3, Bucket: "bucket", Prefix: "a/b"},
		"s3://localhost:4566/bucket/models":         {Scheme: S3, Endpoint: "http://localhost:4566", Bucket: "bucket", Prefix: "models"},
		"s3://http://10.0.0.1:9000/bucket":          {Scheme: S3, Endpoint: "http://10.0.0.1:9000", Bucket: "bucket"},
		"s3://https://minio.example:9000/bucket/a":  {Scheme: S3, Endpoint: "https://minio.example:9000", Bucket: "bucket", Prefix: "a"},
		"s3://https://minio.example/bucket/a":       {Scheme: S3, Endpoint: "https://minio.example", Bucket: "bucket", Prefix: "a"},
		"gs://bucket/path/to/models":                {Scheme: GCS, Bucket: "bucket", Prefix: "path/to/models"},
		"gs://bucket:80/models":                     {Scheme: GCS, Bucket: "bucket:80", Prefix: "models"},
		"as://account/container/models":             {Scheme: Azure, Account: "account", Bucket: "container", Prefix: "models"},
		"as://a.blob.core.windows.net/container":    {Scheme: Azure, Account: "a", Bucket: "container"},
		"as://account/container/models?sv=1&sig=ab": {Scheme: Azure, Account: "account", Bucket: "container", Prefix: "models"},
	} {
		got, err := Parse(path)
		if err != nil || got != want || !Remote(path) {
			t.Errorf("%s: got %+v, %v; want %+v", path, got, err, want)
		}
	}
	for path, want := range map[string]string{
		"s3://":                "No bucket name found in path: s3://",
		"s3://localhost:80":    "No bucket name found in path: s3://localhost:80",
		"s3://localhost:80/":   "No bucket name found in path: s3://localhost:80/",
		"gs:///":               "No bucket name found in path: gs:///",
		"as://account":         "Invalid azure storage path: as://account",
		"as://":                "Invalid azure storage path: as://",
		"s3://bucket/a/../b":   "'s3://bucket/a/../b' has a part '..'",
		"http://bucket/models": "'http://bucket/models' does not begin with s3://, gs:// or as://",
		"/models":              "'/models' does not begin with s3://, gs:// or as://",
	} {
		if l, err := Parse(path); err == nil || err.Error() != want {
			t.Errorf("%s: got %+v, %v; want %s", path, l, err, want)
		}
	}
}

func TestFoldersDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, path := range []string{"s3://b/a", "s3://b-a", "gs://b/a", "s3://h:1/b/a", "as://x/b/a", "as://y/b/a", "s3://b/A", "s3://b"} {
		l, err := Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[l.folder()]; ok {
			t.Errorf("%s and %s share %s", path, other, l.folder())
		}
		seen[l.folder()] = path
	}
}

func TestFindCredential(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cloud_credential.json")
	text := `{"gs": {"": "/all.json", "gs://two": "/two.json"},
		"s3": {"s3://b": {"secret_key": "s", "key_id": "k", "region": "r", "session_token": "t", "profile": "p"}, "s3://b/deep": {"key_id": "deep"}},
		"as": {"": {"account_str": "acc", "account_key": "key"}, "as://mi/": {"account_str": "mi", "auth_type": "managed_identity", "client_id": "id"}}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(vars map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	}
	fromFile := env(map[string]string{"TRITON_CLOUD_CREDENTIAL_PATH": file, "AWS_ACCESS_KEY_ID": "not this one"})
	fromEnv := env(map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": "/g.json", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ACCESS_KEY_ID": "k", "AWS_DEFAULT_REGION": "r",
		"AWS_SESSION_TOKEN": "t", "AWS_PROFILE": "p", "AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_KEY": "key",
		"AZURE_STORAGE_AUTH_TYPE": "default", "AZURE_STORAGE_CLIENT_ID": "id"})
	full := S3Credential{SecretKey: "s", KeyID: "k", Region: "r", SessionToken: "t", Profile: "p"}
	for name, c := range map[string]struct {
		path, scheme string
		env          func(string) (string, bool)
		want         Credential
	}{
		"any gs":       {"gs://one/m", GCS, fromFile, Credential{File: "/all.json"}},
		"longest gs":   {"gs://two/m", GCS, fromFile, Credential{File: "/two.json"}},
		"s3":           {"s3://b/m", S3, fromFile, Credential{S3: full}},
		"longest s3":   {"s3://b/deep/m", S3, fromFile, Credential{S3: S3Credential{KeyID: "deep"}}},
		"any as":       {"as://x/c", Azure, fromFile, Credential{Azure: AzureCredential{Account: "acc", Key: "key"}}},
		"identity":     {"as://mi/c", Azure, fromFile, Credential{Azure: AzureCredential{Account: "mi", AuthType: "managed_identity", ClientID: "id"}}},
		"environment":  {"s3://b/m", S3, fromEnv, Credential{File: "/g.json", S3: full, Azure: AzureCredential{Account: "acc", Key: "key", AuthType: "default", ClientID: "id"}}},
		"nothing said": {"s3://b/m", S3, env(nil), Credential{}},
	} {
		got, err := FindCredential(c.path, c.scheme, c.env)
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	if _, err := FindCredential("s3://other/m", S3, fromFile); err == nil || err.Error() != "Cannot match credential for path  s3://other/m" {
		t.Errorf("no entry: got %v", err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, file + ".none"} {
		if _, err := FindCredential("s3://b", S3, env(map[string]string{"TRITON_CLOUD_CREDENTIAL_PATH": path})); err == nil {
			t.Errorf("%s is read without an error", path)
		}
	}
}
