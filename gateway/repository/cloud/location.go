package cloud

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// The schemes.
const (
	S3    = "s3"
	GCS   = "gs"
	Azure = "as"
)

// Location is a repository's path, taken apart.
type Location struct {
	Scheme   string // S3, GCS or Azure
	Endpoint string // of S3: http://host:port or https://host[:port]; "": Amazon's
	Account  string // of Azure, as the path has it
	Bucket   string // or container
	Prefix   string // of the repository's keys: "" or a path without a slash at its ends
}

// Remote says that a repository's path begins with one of the schemes.
func Remote(path string) bool {
	for _, scheme := range []string{S3, GCS, Azure} {
		if strings.HasPrefix(path, scheme+"://") {
			return true
		}
	}
	return false
}

// Parse takes a path apart: s3://bucket/path, s3://host:port/bucket/path,
// s3://https://host:port/bucket/path, gs://bucket/path, as://account/container/path.
// Errors have the original's words.
// Source: S3FileSystem::ParsePath, GCSFileSystem::ParsePath and ASFileSystem::ParsePath
// of the original; that a host behind http:// or https:// needs no port is ours.
func Parse(path string) (Location, error) {
	scheme, rest, ok := strings.Cut(path, "://")
	if !ok || !Remote(path) {
		return Location{}, fmt.Errorf("'%s' does not begin with s3://, gs:// or as://", path)
	}
	l := Location{Scheme: scheme}
	if scheme == Azure {
		rest, _, _ = strings.Cut(rest, "?")
	}
	protocol := ""
	if scheme == S3 {
		for _, p := range []string{"https://", "http://"} {
			if after, ok := strings.CutPrefix(strings.TrimLeft(rest, "/"), p); ok {
				protocol, rest = p, after
				break
			}
		}
	}
	parts := strings.FieldsFunc(rest, func(r rune) bool { return r == '/' })
	take := func() string {
		if len(parts) == 0 {
			return ""
		}
		first := parts[0]
		parts = parts[1:]
		return first
	}
	switch {
	case scheme == Azure && len(parts) < 2:
		return Location{}, fmt.Errorf("Invalid azure storage path: %s", path)
	case scheme == Azure:
		l.Account = strings.TrimSuffix(take(), ".blob.core.windows.net")
	case len(parts) > 0 && protocol != "":
		l.Endpoint = protocol + take()
	case len(parts) > 0 && scheme == S3 && hostAndPort(parts[0]):
		l.Endpoint = "http://" + take()
	}
	if l.Bucket = take(); l.Bucket == "" {
		return Location{}, fmt.Errorf("No bucket name found in path: %s", path)
	}
	l.Prefix = strings.Join(parts, "/")
	for _, p := range parts {
		if p == "." || p == ".." {
			return Location{}, fmt.Errorf("'%s' has a part '%s'", path, p)
		}
	}
	return l, nil
}

// hostAndPort is how the original tells an endpoint from a bucket.
func hostAndPort(s string) bool {
	return regexp.MustCompile(`^[0-9a-zA-Z\-.]+:[0-9]+$`).MatchString(s)
}

// String is the location in its shortest form.
func (l Location) String() string {
	parts := []string{l.Bucket}
	if l.Prefix != "" {
		parts = append(parts, l.Prefix)
	}
	if l.Account != "" {
		parts = append([]string{l.Account}, parts...)
	}
	if l.Endpoint != "" {
		parts = append([]string{strings.TrimPrefix(l.Endpoint, "http://")}, parts...)
	}
	return l.Scheme + "://" + strings.Join(parts, "/")
}

// folder is the name of the repository's folder in a cache: readable, and its own.
func (l Location) folder() string {
	sum := sha256.Sum256([]byte(l.String()))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, l.Bucket+"-"+l.Prefix)
	return strings.Trim(name[:min(len(name), 60)], "-") + "-" + hex.EncodeToString(sum[:8])
}

// dir is the prefix of all keys of the repository.
func (l Location) dir() string {
	if l.Prefix == "" {
		return ""
	}
	return l.Prefix + "/"
}
