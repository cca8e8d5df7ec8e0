package drivers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2/google"

	"github.com/sluice-serve/sluice/gateway/repository/cloud"
)

// openGCS authorizes with a key file, else with what Google's library finds (the
// machine's identity too), else not at all, for public buckets. STORAGE_EMULATOR_HOST
// names another server, which is asked without authorization.
// Source: GCSFileSystem::GCSFileSystem of the original; the variable is the library's.
func openGCS(ctx context.Context, l cloud.Location, file string, env func(string) (string, bool)) (*cloud.Bucket, error) {
	client, err := gcsClient(ctx, file, env)
	if err != nil {
		return nil, err
	}
	b, err := gcsblob.OpenBucket(ctx, client, l.Bucket, nil)
	if err != nil {
		return nil, err
	}
	var library *storage.Client
	if b.As(&library) {
		library.SetRetry(storage.WithPolicy(storage.RetryNever)) // the caller tries again
	}
	return &cloud.Bucket{Bucket: b, Tag: gcsTag, Exact: gcsExact}, nil
}

func gcsClient(ctx context.Context, file string, env func(string) (string, bool)) (*gcp.HTTPClient, error) {
	plain := &gcp.HTTPClient{Client: http.Client{Transport: transport()}}
	if host, ok := env("STORAGE_EMULATOR_HOST"); ok && host != "" {
		return plain, nil
	}
	const scope = storage.ScopeReadOnly
	var creds *google.Credentials
	if file != "" {
		key, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("Google's credentials: %w", err)
		}
		if creds, err = google.CredentialsFromJSON(ctx, key, scope); err != nil {
			return nil, fmt.Errorf("Google's credentials: %s: %w", file, err)
		}
	} else if found, err := google.FindDefaultCredentials(ctx, scope); err == nil {
		creds = found
	} else {
		return plain, nil
	}
	return gcp.NewHTTPClient(transport(), creds.TokenSource)
}

func gcsTag(o *blob.ListObject) string {
	var attrs storage.ObjectAttrs
	if !o.As(&attrs) || attrs.Generation == 0 {
		return ""
	}
	return strconv.FormatInt(attrs.Generation, 10)
}

func gcsExact(as func(any) bool, tag string) error {
	generation, err := strconv.ParseInt(tag, 10, 64)
	if err != nil {
		return err
	}
	var handle **storage.ObjectHandle
	if !as(&handle) {
		return errors.New("Google's library gave no object to make exact")
	}
	*handle = (*handle).Generation(generation)
	return nil
}
