package cloud

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Credential is how to reach a bucket; empty fields mean that the cloud's own ways
// (environment, profiles, the machine's identity) are gone. They are never logged.
type Credential struct {
	File  string // GCS: path of a key file; "": Google's own ways
	S3    S3Credential
	Azure AzureCredential
}

// S3Credential is an entry of "s3" in the credential file.
type S3Credential struct {
	SecretKey    string `json:"secret_key"`
	KeyID        string `json:"key_id"`
	Region       string `json:"region"`
	SessionToken string `json:"session_token"`
	Profile      string `json:"profile"`
}

// AzureCredential is an entry of "as" in the credential file.
type AzureCredential struct {
	Account  string `json:"account_str"` // "": that of the path
	Key      string `json:"account_key"`
	AuthType string `json:"auth_type"` // key, managed_identity, default; "": key where there is one, else none
	ClientID string `json:"client_id"` // of a managed identity that was assigned by the user
}

// credentialFile is the JSON of TRITON_CLOUD_CREDENTIAL_PATH: beginnings of paths with
// their credentials.
// Source: docs/user_guide/model_repository.md of the original.
type credentialFile struct {
	GS map[string]string          `json:"gs"`
	S3 map[string]S3Credential    `json:"s3"`
	AS map[string]AzureCredential `json:"as"`
}

// FindCredential gives the credential for a repository's path: from the file that
// TRITON_CLOUD_CREDENTIAL_PATH names the entry with the longest name that the path
// begins with, or, without that variable, what the environment says. env looks up a
// variable.
// Source: FileSystemManager::LoadCredentials and GetLongestMatchingNameIndex of the
// original.
func FindCredential(path, scheme string, env func(string) (string, bool)) (Credential, error) {
	get := func(name string) string { v, _ := env(name); return v }
	file, ok := env("TRITON_CLOUD_CREDENTIAL_PATH")
	if !ok {
		return Credential{File: get("GOOGLE_APPLICATION_CREDENTIALS"),
			S3: S3Credential{SecretKey: get("AWS_SECRET_ACCESS_KEY"), KeyID: get("AWS_ACCESS_KEY_ID"), Region: get("AWS_DEFAULT_REGION"),
				SessionToken: get("AWS_SESSION_TOKEN"), Profile: get("AWS_PROFILE")},
			Azure: AzureCredential{Account: get("AZURE_STORAGE_ACCOUNT"), Key: get("AZURE_STORAGE_KEY"),
				AuthType: get("AZURE_STORAGE_AUTH_TYPE"), ClientID: get("AZURE_STORAGE_CLIENT_ID")}}, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return Credential{}, fmt.Errorf("TRITON_CLOUD_CREDENTIAL_PATH: %w", err)
	}
	var all credentialFile
	if err := json.Unmarshal(text, &all); err != nil {
		return Credential{}, fmt.Errorf("TRITON_CLOUD_CREDENTIAL_PATH: %s: %w", file, err)
	}
	var c Credential
	switch scheme {
	case GCS:
		c.File, ok = longest(path, all.GS)
	case S3:
		c.S3, ok = longest(path, all.S3)
	case Azure:
		c.Azure, ok = longest(path, all.AS)
	}
	if !ok {
		return c, fmt.Errorf("Cannot match credential for path  %s", path)
	}
	return c, nil
}

// longest is the value of the longest name that path begins with.
func longest[T any](path string, all map[string]T) (value T, found bool) {
	best := -1
	for name, v := range all {
		if len(name) > best && strings.HasPrefix(path, name) {
			best, value, found = len(name), v, true
		}
	}
	return value, found
}
