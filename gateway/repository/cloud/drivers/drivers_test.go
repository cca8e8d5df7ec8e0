package drivers

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/sluice-serve/sluice/gateway/repository/cloud"
)

// site is a fake cloud over HTTP. before may answer a request in its place.
type site struct {
	*httptest.Server
	gets   atomic.Int64 // objects asked for
	mu     sync.Mutex
	before func(w http.ResponseWriter, r *http.Request) (answered bool) // mu
}

func newSite(t *testing.T, isObject func(r *http.Request) bool, h http.Handler) *site {
	s := &site{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isObject(r) {
			s.gets.Add(1)
		}
		s.mu.Lock()
		before := s.before
		s.mu.Unlock()
		if before == nil || !before(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) intercept(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newStore is a Store with its cache in dir.
func newStore(t *testing.T, dir string, vars map[string]string) *cloud.Store {
	t.Helper()
	env := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	s := cloud.New(cloud.Config{Directory: dir, Env: env, Open: New(env), Log: slog.New(slog.DiscardHandler), Tries: 3, Pause: time.Millisecond,
		Stall: 2 * time.Second})
	t.Cleanup(func() { must(t, s.Close(context.WithoutCancel(t.Context()))) })
	return s
}

func read(t *testing.T, view, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(view, name))
	must(t, err)
	return string(text)
}

// fakeS3 is a local S3 server with a bucket "b".
type fakeS3 struct {
	*site
	backend gofakes3.Backend
}

func newS3(t *testing.T) *fakeS3 {
	t.Helper()
	backend := s3mem.New()
	must(t, backend.CreateBucket("b"))
	h := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	return &fakeS3{newSite(t, func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/b/models") }, h), backend}
}

func (s *fakeS3) put(t *testing.T, key, content string) {
	t.Helper()
	_, err := s.backend.PutObject("b", key, map[string]string{}, strings.NewReader(content), int64(len(content)), nil)
	must(t, err)
}

func (s *fakeS3) path() string { return "s3://" + strings.TrimPrefix(s.URL, "http://") + "/b/models" }

var keys = map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}

func TestS3(t *testing.T) {
	site := newS3(t)
	big := strings.Repeat("0123456789abcdef", 200_000)
	site.put(t, "models/a/1/model.onnx", big)
	site.put(t, "models/a/config.pbtxt", "config")
	site.put(t, "models/a/2/", "")
	dir := filepath.Join(t.TempDir(), "cache")
	s := newStore(t, dir, keys)
	view, err := s.Sync(t.Context(), site.path(), "")
	must(t, err)
	if read(t, view, "a/1/model.onnx") != big || read(t, view, "a/config.pbtxt") != "config" {
		t.Error("the copies differ")
	}
	if info, err := os.Stat(filepath.Join(view, "a", "2")); err != nil || !info.IsDir() {
		t.Errorf("the empty version folder is not there: %v", err)
	}
	site.put(t, "models/a/config.pbtxt", "CONFIG")
	site.gets.Store(0)
	_, err = s.Sync(t.Context(), site.path(), "")
	must(t, err)
	if got := read(t, view, "a/config.pbtxt"); got != "CONFIG" || site.gets.Load() != 1 {
		t.Errorf("read %q after %d objects were fetched, want CONFIG and 1", got, site.gets.Load())
	}
	must(t, s.Close(t.Context()))

	site.Close() // the server is gone
	view, err = newStore(t, dir, keys).Sync(t.Context(), site.path(), "")
	must(t, err)
	if read(t, view, "a/1/model.onnx") != big || read(t, view, "a/config.pbtxt") != "CONFIG" {
		t.Error("the copies differ after a restart without the server")
	}
}

// big is the content of an object that takes several reads.
func big() string { return strings.Repeat("x", 3<<20) }

func isBig(r *http.Request) bool { return r.URL.Path == "/b/models/a/1/model.onnx" }

// newBig is a local S3 server with one object.
func newBig(t *testing.T) *fakeS3 {
	t.Helper()
	site := newS3(t)
	site.put(t, "models/a/1/model.onnx", big())
	return site
}

// copied checks that the object comes whole in the end.
func copied(t *testing.T, site *fakeS3) {
	t.Helper()
	view, err := newStore(t, filepath.Join(t.TempDir(), "c"), keys).Sync(t.Context(), site.path(), "")
	must(t, err)
	if read(t, view, "a/1/model.onnx") != big() {
		t.Error("the copy differs")
	}
}

func TestS3PassingFaults(t *testing.T) {
	t.Run("refused once", func(t *testing.T) {
		site := newBig(t)
		var once atomic.Bool
		site.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !isBig(r) || once.Swap(true) {
				return false
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
		copied(t, site)
	})
	t.Run("broken off, then resumed", func(t *testing.T) {
		site := newBig(t)
		var ranges []string // in order; requests of one object follow one another
		site.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !isBig(r) {
				return false
			}
			ranges = append(ranges, r.Header.Get("Range"))
			if len(ranges) == 1 {
				w.Header().Set("Content-Length", strconv.Itoa(len(big())))
				_, _ = io.WriteString(w, big()[:len(big())/2]) // then the connection ends
				panic(http.ErrAbortHandler)
			}
			return false
		})
		copied(t, site)
		if len(ranges) != 2 || !strings.HasPrefix(ranges[1], "bytes=") || ranges[1] == "bytes=0-" {
			t.Errorf("ranges %q were asked for, want that the second goes on", ranges)
		}
	})
	t.Run("silent", func(t *testing.T) {
		site := newBig(t)
		var once atomic.Bool
		site.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if !isBig(r) || once.Swap(true) {
				return false
			}
			<-r.Context().Done()
			return true
		})
		copied(t, site)
	})
}

func TestS3LastingFaults(t *testing.T) {
	t.Run("broken off always", func(t *testing.T) {
		site := newBig(t)
		site.put(t, "models/b/1/model.onnx", "b")
		site.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if isBig(r) {
				panic(http.ErrAbortHandler)
			}
			return false
		})
		cache := filepath.Join(t.TempDir(), "c")
		view, err := newStore(t, cache, keys).Sync(t.Context(), site.path(), "")
		if err == nil || !strings.Contains(err.Error(), "model 'a' of "+site.path()+" was not copied: fetching 'models/a/1/model.onnx'") {
			t.Errorf("got %v", err)
		}
		if read(t, view, "b/1/model.onnx") != "b" {
			t.Error("the other model is not there")
		}
		if _, err := os.Stat(filepath.Join(view, "a")); err == nil {
			t.Error("a half-copied model is in the view")
		}
		left, err := filepath.Glob(filepath.Join(cache, "repositories", "*", "tmp", "*"))
		must(t, err)
		if len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
	})
	t.Run("other bytes", func(t *testing.T) {
		site := newBig(t)
		site.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if isBig(r) {
				w.Header().Set("Content-Length", strconv.Itoa(len(big())))
				_, _ = io.WriteString(w, "X"+big()[1:])
			}
			return isBig(r)
		})
		_, err := newStore(t, filepath.Join(t.TempDir(), "c"), keys).Sync(t.Context(), site.path(), "")
		if err == nil || !strings.Contains(err.Error(), "it has changed since it was listed: its MD5 is") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no bucket", func(t *testing.T) {
		site := newS3(t)
		_, err := newStore(t, filepath.Join(t.TempDir(), "c"), keys).Sync(t.Context(), "s3://"+strings.TrimPrefix(site.URL, "http://")+"/none", "")
		if err == nil || !strings.Contains(err.Error(), "NoSuchBucket") {
			t.Errorf("got %v", err)
		}
	})
}

// A request is signed with the key that the credential file has for the path.
func TestS3CredentialFile(t *testing.T) {
	site := newS3(t)
	site.put(t, "models/a/1/model.onnx", "x")
	var mu sync.Mutex
	var seen []string
	site.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Header.Get("Authorization"))
		return false
	})
	file := filepath.Join(t.TempDir(), "cred.json")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `{"s3": {"": {"key_id": "wrong", "secret_key": "w"}, "%s": {"key_id": "right", "secret_key": "s", "region": "eu-x-1"}}}`, site.path()), 0o600))
	_, err := newStore(t, filepath.Join(t.TempDir(), "c"), map[string]string{"TRITON_CLOUD_CREDENTIAL_PATH": file}).Sync(t.Context(), site.path(), "")
	must(t, err)
	if len(seen) == 0 || slices.ContainsFunc(seen, func(a string) bool {
		return !strings.Contains(a, "Credential=right/") || !strings.Contains(a, "/eu-x-1/s3/")
	}) {
		t.Errorf("requests were authorized with %q", seen)
	}
}

// blobs are the objects of the fakes of Google's and Azure's storage.
type blobs struct {
	mu         sync.Mutex
	content    map[string]string // mu
	generation map[string]int    // mu
}

func (b *blobs) put(key, content string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.content[key] = content
	b.generation[key]++
}

func (b *blobs) names(prefix string) []string {
	var all []string
	for key := range b.content {
		if strings.HasPrefix(key, prefix) {
			all = append(all, key)
		}
	}
	slices.Sort(all)
	return all
}

func sum(content string) string {
	m := md5.Sum([]byte(content))
	return base64.StdEncoding.EncodeToString(m[:])
}

// gcs answers Google's JSON listing, a page of one object each, and its XML reads.
func (b *blobs) gcs(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/b/bucket/o") {
		names := b.names(r.URL.Query().Get("prefix"))
		i, _ := strconv.Atoi(r.URL.Query().Get("pageToken")) // "" is the first
		answer := map[string]any{"kind": "storage#objects"}
		if i < len(names) {
			key := names[i]
			answer["items"] = []map[string]any{{"name": key, "bucket": "bucket", "size": strconv.Itoa(len(b.content[key])), "md5Hash": sum(b.content[key]),
				"generation": strconv.Itoa(b.generation[key]), "updated": "2026-01-02T03:04:05Z"}}
			if i+1 < len(names) {
				answer["nextPageToken"] = strconv.Itoa(i + 1)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	if content, ok := b.content[key]; ok && r.URL.Query().Get("generation") == strconv.Itoa(b.generation[key]) {
		w.Header().Set("X-Goog-Generation", strconv.Itoa(b.generation[key]))
		http.ServeContent(w, r, "", time.Unix(1e9, 0), strings.NewReader(content))
		return
	}
	http.NotFound(w, r)
}

// azure answers Azure's XML listing and its reads.
func (b *blobs) azure(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tag := func(key string) string { return fmt.Sprintf(`"0x%d"`, b.generation[key]) }
	if r.URL.Query().Get("comp") == "list" {
		var out bytes.Buffer
		out.WriteString(`<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="c"><Blobs>`)
		for _, key := range b.names(r.URL.Query().Get("prefix")) {
			fmt.Fprintf(&out, `<Blob><Name>%s</Name><Properties><Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified><Etag>%s</Etag>`+
				`<Content-Length>%d</Content-Length><Content-MD5>%s</Content-MD5><BlobType>BlockBlob</BlobType></Properties></Blob>`,
				key, tag(key), len(b.content[key]), sum(b.content[key]))
		}
		out.WriteString(`</Blobs><NextMarker/></EnumerationResults>`)
		w.Header().Set("Content-Type", "application/xml")
		_, _ = w.Write(out.Bytes())
		return
	}
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/c/")
	content, ok := b.content[key]
	if !ok || r.Header.Get("If-Match") != tag(key) {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", tag(key))
	if from := r.Header.Get("X-Ms-Range"); from != "" {
		r.Header.Set("Range", from)
	}
	http.ServeContent(w, r, "", time.Unix(1e9, 0), strings.NewReader(content))
}

// fakeSync copies, changes one object, and copies again.
func fakeSync(t *testing.T, b *blobs, site *site, path string, vars map[string]string) {
	t.Helper()
	b.put("models/a/1/model.onnx", "weights")
	b.put("models/a/config.pbtxt", "config")
	b.put("other/b/config.pbtxt", "config")
	dir := filepath.Join(t.TempDir(), "cache")
	s := newStore(t, dir, vars)
	view, err := s.Sync(t.Context(), path, "")
	must(t, err)
	if read(t, view, "a/1/model.onnx") != "weights" || read(t, view, "a/config.pbtxt") != "config" {
		t.Error("the copies differ")
	}
	b.put("models/a/1/model.onnx", "WEIGHTS")
	site.gets.Store(0)
	_, err = s.Sync(t.Context(), path, "")
	must(t, err)
	if got := read(t, view, "a/1/model.onnx"); got != "WEIGHTS" || site.gets.Load() != 1 {
		t.Errorf("read %q after %d objects were fetched, want WEIGHTS and 1", got, site.gets.Load())
	}
	must(t, s.Close(t.Context()))
	site.Close()
	view, err = newStore(t, dir, vars).Sync(t.Context(), path, "")
	must(t, err)
	if read(t, view, "a/1/model.onnx") != "WEIGHTS" {
		t.Error("the copies differ after a restart without the server")
	}
}

func TestGCS(t *testing.T) {
	b := &blobs{content: map[string]string{}, generation: map[string]int{}}
	site := newSite(t, func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/bucket/models") }, http.HandlerFunc(b.gcs))
	host := strings.TrimPrefix(site.URL, "http://")
	t.Setenv("STORAGE_EMULATOR_HOST", host) // Google's library reads it itself
	fakeSync(t, b, site, "gs://bucket/models", map[string]string{"STORAGE_EMULATOR_HOST": host})
}

func TestAzure(t *testing.T) {
	b := &blobs{content: map[string]string{}, generation: map[string]int{}}
	site := newSite(t, func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/c/models") }, http.HandlerFunc(b.azure))
	fakeSync(t, b, site, "as://account/c/models", map[string]string{"AZURE_STORAGE_DOMAIN": strings.TrimPrefix(site.URL, "http://"),
		"AZURE_STORAGE_PROTOCOL": "http", "AZURE_STORAGE_KEY": base64.StdEncoding.EncodeToString([]byte("key"))})
}

func TestAzureAuthType(t *testing.T) {
	_, err := azureClient("http://127.0.0.1:1/c", "account", cloud.AzureCredential{AuthType: "magic"})
	if err == nil || !strings.Contains(err.Error(), "'magic' is no auth_type of Azure") {
		t.Errorf("got %v", err)
	}
	for _, how := range []string{"", "managed_identity", "default"} {
		if _, err := azureClient("http://127.0.0.1:1/c", "account", cloud.AzureCredential{AuthType: how, ClientID: "id"}); err != nil {
			t.Errorf("%q: %v", how, err)
		}
	}
}
