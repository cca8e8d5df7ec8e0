package cloud

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"

	"github.com/sluice-serve/sluice/gateway/repository/internal/logtest"
)

// rig is a bucket in memory and a cache folder.
type rig struct {
	t     *testing.T
	data  map[string]string // key → content
	mem   []*blob.Bucket    // all that were opened, with that data
	cache string
	away  atomic.Bool  // the bucket can't be opened
	reads atomic.Int64 // objects read
	log   *logtest.Book
	cfg   Config
}

const path = "s3://bucket/models"

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, data: map[string]string{}, cache: filepath.Join(t.TempDir(), "cache"), log: &logtest.Book{}}
	r.cfg = Config{Directory: r.cache, Env: func(string) (string, bool) { return "", false }, Open: r.open,
		Log: slog.New(slog.NewTextHandler(r.log, nil)), Tries: 2, Pause: time.Millisecond, Keep: time.Hour}
	return r
}

func (r *rig) open(ctx context.Context, _ Location, _ Credential) (*Bucket, error) {
	if r.away.Load() {
		return nil, errors.New("no route to host")
	}
	mem := memblob.OpenBucket(nil)
	for key, content := range r.data {
		if err := mem.WriteAll(ctx, key, []byte(content), nil); err != nil {
			return nil, err
		}
	}
	r.mem = append(r.mem, mem)
	return &Bucket{Bucket: mem, Exact: func(func(any) bool, string) error { r.reads.Add(1); return nil },
		Tag: func(o *blob.ListObject) string { return fmt.Sprintf("%x", o.MD5) }}, nil
}

// each changes the open buckets.
func (r *rig) each(do func(b *blob.Bucket) error) {
	r.t.Helper()
	for _, b := range r.mem {
		if err := do(b); err != nil && gcerrors.Code(err) != gcerrors.FailedPrecondition { // closed
			r.t.Fatal(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) put(key, content string) {
	r.t.Helper()
	r.data[key] = content
	r.each(func(b *blob.Bucket) error { return b.WriteAll(r.t.Context(), key, []byte(content), nil) })
}

func (r *rig) remove(key string) {
	r.t.Helper()
	delete(r.data, key)
	r.each(func(b *blob.Bucket) error { return b.Delete(r.t.Context(), key) })
}

// store is a server's Store; it is closed at the test's end.
func (r *rig) store() *Store {
	s := New(r.cfg)
	r.t.Cleanup(func() { must(r.t, s.Close(context.WithoutCancel(r.t.Context()))) })
	return s
}

// sync is one that must succeed; it gives the files of the view.
func (r *rig) sync(s *Store) map[string]string {
	r.t.Helper()
	dir, err := s.Sync(r.t.Context(), path, "")
	must(r.t, err)
	return r.files(dir)
}

// files are the contents of a view by path; folders without files end with a slash.
func (r *rig) files(view string) map[string]string {
	r.t.Helper()
	out := map[string]string{}
	models, err := os.ReadDir(view)
	must(r.t, err)
	for _, m := range models {
		root, err := filepath.EvalSymlinks(filepath.Join(view, m.Name()))
		must(r.t, err)
		must(r.t, filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			name := filepath.Join(m.Name(), rel)
			if e.IsDir() {
				inside, err := os.ReadDir(p)
				if len(inside) == 0 {
					out[name+"/"] = ""
				}
				return err
			}
			text, err := os.ReadFile(p)
			out[name] = string(text)
			return err
		}))
	}
	return out
}

func (r *rig) want(got, want map[string]string) {
	r.t.Helper()
	if len(got) != len(want) {
		r.t.Errorf("got %v, want %v", got, want)
	}
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			r.t.Errorf("%s: got %q (%t), want %q", k, g, ok, v)
		}
	}
}

// objects are the files of the content-addressed part.
func (r *rig) objects() []string {
	r.t.Helper()
	all, err := filepath.Glob(filepath.Join(r.cache, "objects", "*", "*"))
	must(r.t, err)
	return all
}

func (r *rig) demo() map[string]string {
	r.put("models/a/config.pbtxt", "config a")
	r.put("models/a/1/model.onnx", "weights a")
	r.put("models/b/1/", "")
	r.put("models/b/config.pbtxt", "config b")
	r.put("models/readme.md", "no model")
	r.put("models/.hidden/1/x", "no model")
	r.put("other/c/1/model.onnx", "another repository")
	r.put("modelsz/d/1/model.onnx", "another repository")
	return map[string]string{"a/config.pbtxt": "config a", "a/1/model.onnx": "weights a", "b/config.pbtxt": "config b", "b/1/": ""}
}

func TestSyncAndChanges(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	s := r.store()
	r.want(r.sync(s), want)
	if n := r.reads.Load(); n != 3 {
		t.Errorf("%d objects were read, want 3", n)
	}
	view, err := s.Sync(t.Context(), path, "")
	must(t, err)
	before, err := os.Readlink(filepath.Join(view, "a"))
	must(t, err)
	old, err := filepath.EvalSymlinks(filepath.Join(view, "a"))
	must(t, err)

	r.put("models/a/1/model.onnx", "weights A") // same size
	want["a/1/model.onnx"] = "weights A"
	r.remove("models/b/1/")
	delete(want, "b/1/")
	r.put("models/c/1/model.onnx", "weights c")
	want["c/1/model.onnx"] = "weights c"
	r.want(r.sync(s), want)
	if n := r.reads.Load(); n != 5 {
		t.Errorf("%d objects were read, want 5: only what changed is fetched", n)
	}
	if after, err := os.Readlink(filepath.Join(view, "a")); err != nil || after == before {
		t.Errorf("the link of a changed model is %s as before, %v", after, err)
	}
	if text, err := os.ReadFile(filepath.Join(old, "1", "model.onnx")); err != nil || string(text) != "weights a" {
		t.Errorf("the replaced folder reads %q, %v; it must stay for versions that are loaded from it", text, err)
	}

	for _, key := range []string{"models/a/1/model.onnx", "models/a/config.pbtxt"} {
		r.remove(key)
		delete(want, strings.TrimPrefix(key, "models/"))
	}
	r.want(r.sync(s), want)
	if n := len(r.objects()); n != 2 {
		t.Errorf("%d objects are in the cache, want 2: the others are unused", n)
	}
}

func TestOneModel(t *testing.T) {
	r := newRig(t)
	r.demo()
	s := r.store()
	view, err := s.Sync(t.Context(), path, "b")
	must(t, err)
	r.want(r.files(view), map[string]string{"b/config.pbtxt": "config b", "b/1/": ""})
	_, err = s.Sync(t.Context(), path, "a")
	must(t, err)
	r.remove("models/b/1/")
	r.remove("models/b/config.pbtxt")
	_, err = s.Sync(t.Context(), path, "b")
	must(t, err)
	r.want(r.files(view), map[string]string{"a/config.pbtxt": "config a", "a/1/model.onnx": "weights a"})
	for _, bad := range []string{"..", "a\x00"} {
		if _, err := s.Sync(t.Context(), path, bad); err == nil {
			t.Errorf("model %q is synced without an error", bad)
		}
	}
}

func TestRestart(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	s := r.store()
	r.want(r.sync(s), want)
	must(t, s.Close(t.Context()))
	read := r.reads.Load()

	r.want(r.sync(r.store()), want)
	if n := r.reads.Load(); n != read {
		t.Errorf("%d objects were fetched after a restart, want none", n-read)
	}
}

func TestRestartWithoutCloud(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	first := r.store()
	r.sync(first)
	must(t, first.Close(t.Context()))
	r.away.Store(true)
	s := r.store()
	r.want(r.sync(s), want)
	r.want(r.sync(s), want)
	if n := strings.Count(r.log.String(), "s3://bucket/models can't be reached; its copies in the cache were checked and are served"); n != 1 {
		t.Errorf("the log tells of it %d times, want once:\n%s", n, r.log)
	}
	if view, err := s.Sync(t.Context(), path, "a"); err != nil || len(r.files(view)) != len(want) {
		t.Errorf("one model: %v", err)
	}
	if _, err := s.Sync(t.Context(), path, "new"); err == nil || !strings.Contains(err.Error(), "failed to poll model repository 's3://bucket/models': no route to host") {
		t.Errorf("a model without copies: got %v", err)
	}
	r.away.Store(false)
	r.put("models/a/1/model.onnx", "newer")
	want["a/1/model.onnx"] = "newer"
	r.want(r.sync(s), want)
	if !strings.Contains(r.log.String(), "can be reached again") {
		t.Errorf("the log does not tell that the cloud is back:\n%s", r.log)
	}
}

func TestNothingCachedAndNoCloud(t *testing.T) {
	r := newRig(t)
	r.away.Store(true)
	if _, err := r.store().Sync(t.Context(), path, ""); err == nil || err.Error() != "failed to poll model repository 's3://bucket/models': no route to host" {
		t.Errorf("got %v", err)
	}
}

// damage changes a byte of the object that holds a text.
func (r *rig) damage(text string) {
	r.t.Helper()
	for _, p := range r.objects() {
		content, err := os.ReadFile(p)
		must(r.t, err)
		if string(content) == text {
			must(r.t, os.Chmod(p, 0o600))
			must(r.t, os.WriteFile(p, []byte("W"+text[1:]), 0o600))
			return
		}
	}
	r.t.Fatalf("no object holds %q", text)
}

func TestDamageIsNoticed(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	first := r.store()
	r.sync(first)
	must(t, first.Close(t.Context()))
	r.damage("weights a")
	second := r.store()
	r.want(r.sync(second), want)
	if !strings.Contains(r.log.String(), "is damaged") || !strings.Contains(r.log.String(), "'1/model.onnx' of model 'a' of s3://bucket/models is fetched again") {
		t.Errorf("the log does not tell of the damage:\n%s", r.log)
	}
	must(t, second.Close(t.Context()))

	r.damage("weights a")
	r.away.Store(true)
	view, err := r.store().Sync(t.Context(), path, "")
	if err == nil || !strings.Contains(err.Error(), "model 'a' of s3://bucket/models can't be served from the cache: '1/model.onnx'") {
		t.Errorf("got %v, want that a can't be served", err)
	}
	r.want(r.files(view), map[string]string{"b/config.pbtxt": "config b", "b/1/": ""})
}

func TestDamagedManifest(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":    "{",
		"other":      `{"format":1,"location":"s3://other","models":{}}`,
		"traversal":  `{"format":1,"location":"s3://bucket/models","models":{"a":{"objects":[{"path":"../../x","size":1,"sha256":"00"}]}}}`,
		"bad model":  `{"format":1,"location":"s3://bucket/models","models":{"..":{"objects":[]}}}`,
		"empty path": `{"format":1,"location":"s3://bucket/models","models":{"a":{"objects":[{"path":""}]}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			want := r.demo()
			first := r.store()
			r.sync(first)
			must(t, first.Close(t.Context()))
			files, err := filepath.Glob(filepath.Join(r.cache, "repositories", "*", "manifest.json"))
			must(t, err)
			must(t, os.WriteFile(files[0], []byte(text), 0o600))
			r.want(r.sync(r.store()), want)
			if !strings.Contains(r.log.String(), "the list of copies of s3://bucket/models is damaged") {
				t.Errorf("the log does not tell of it:\n%s", r.log)
			}
		})
	}
}

func TestKeysThatCanBeNoFiles(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	s := r.store()
	r.sync(s)
	r.put("models/a/1/../../../evil", "x")
	r.put("models/both/x", "a file")
	r.put("models/both/x/y", "and a folder")
	r.put("models/empty//part", "x")
	r.put("models/long/"+strings.Repeat("l", 256), "x")
	view, err := s.Sync(t.Context(), path, "")
	for _, text := range []string{
		"model 'a' of s3://bucket/models: object 'models/a/1/../../../evil' can't be a file: it has a part '..'",
		"model 'both' of s3://bucket/models was not copied: model 'both' of s3://bucket/models: 'x/y' is a file and a folder",
		"model 'empty' of s3://bucket/models: object 'models/empty//part' can't be a file: it has an empty part",
		"can't be a file: a part of it has 256 bytes, more than 255",
	} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want in it %q", err, text)
		}
	}
	r.want(r.files(view), want) // a keeps its last whole copy
}

// A model is never seen in part: while one is replaced again and again, whoever follows
// its link finds both files of one generation.
func TestNeverHalf(t *testing.T) {
	r := newRig(t)
	write := func(i int) {
		r.put("models/a/one", fmt.Sprint(i))
		r.put("models/a/two", fmt.Sprint(i))
	}
	write(0)
	s := r.store()
	view, err := s.Sync(t.Context(), path, "")
	must(t, err)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			dir, err := filepath.EvalSymlinks(filepath.Join(view, "a"))
			one, err1 := os.ReadFile(filepath.Join(dir, "one"))
			two, err2 := os.ReadFile(filepath.Join(dir, "two"))
			if err := errors.Join(err, err1, err2); err != nil || string(one) != string(two) {
				done <- fmt.Errorf("read %q and %q, %w", one, two, err)
				return
			}
		}
	}()
	for i := 1; i < 40; i++ {
		write(i)
		_, err := s.Sync(t.Context(), path, "")
		must(t, err)
	}
	close(stop)
	must(t, <-done)
}

func TestTwoServers(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	one, two := r.store(), r.store()
	r.want(r.sync(one), want)
	r.want(r.sync(two), want)
	viewOne, err := one.Sync(t.Context(), path, "")
	must(t, err)
	viewTwo, err := two.Sync(t.Context(), path, "")
	must(t, err)
	if viewOne == viewTwo {
		t.Error("two servers share a view")
	}
	if n := len(r.objects()); n != 3 {
		t.Errorf("%d objects are in the cache, want 3: they are shared", n)
	}
	r.put("models/a/1/model.onnx", "newer")
	r.sync(two) // must leave what one serves
	r.want(r.files(viewOne), want)
	must(t, one.Close(t.Context()))
	must(t, two.Close(t.Context()))
}

func TestManySyncsAtOnce(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	s := r.store()
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			model := []string{"", "a", "b"}[i%3]
			if _, err := s.Sync(t.Context(), path, model); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.want(r.sync(s), want)
}

func TestRoom(t *testing.T) {
	r := newRig(t)
	r.put("models/a/1/x", strings.Repeat("a", 600))
	r.put("other/b/1/x", strings.Repeat("b", 600))
	r.put("more/c/1/x", strings.Repeat("c", 600))
	r.cfg.MaxBytes = 1500
	first := r.store()
	_, err := first.Sync(t.Context(), path, "")
	must(t, err)
	must(t, first.Close(t.Context()))
	for _, p := range r.objects() { // its copies are of yesterday
		yesterday := time.Now().Add(-24 * time.Hour)
		must(t, os.Chtimes(p, yesterday, yesterday))
	}
	s := r.store()
	_, err = s.Sync(t.Context(), "s3://bucket/other", "")
	must(t, err)
	_, err = s.Sync(t.Context(), "s3://bucket/more", "")
	must(t, err) // the copies of the repository that nobody holds go
	if n := len(r.objects()); n != 2 {
		t.Errorf("%d objects are in the cache, want 2", n)
	}
	view, err := s.Sync(t.Context(), path, "")
	if err == nil || !strings.Contains(err.Error(), "600 bytes more are needed, and the cache '"+r.cache+"' holds 1200 of at most 1500 (--cloud-cache-byte-size)") {
		t.Errorf("got %v, want that there is no room", err)
	}
	r.want(r.files(view), nil)
}

func TestForgotten(t *testing.T) {
	r := newRig(t)
	r.demo()
	first := r.store()
	r.sync(first)
	must(t, first.Close(t.Context()))
	files, err := filepath.Glob(filepath.Join(r.cache, "repositories", "*", "manifest.json"))
	must(t, err)
	long := time.Now().Add(-31 * 24 * time.Hour)
	must(t, os.Chtimes(files[0], long, long))
	_, err = r.store().Sync(t.Context(), "s3://bucket/other", "")
	must(t, err)
	if n := len(r.objects()); n != 1 {
		t.Errorf("%d objects are in the cache, want 1: the others were not asked for in a month", n)
	}
}

func TestReplacedTreesGo(t *testing.T) {
	r := newRig(t)
	r.cfg.Keep = time.Nanosecond
	r.demo()
	s := r.store()
	r.sync(s)
	for i := range 3 {
		r.put("models/a/1/model.onnx", fmt.Sprint(i))
		r.sync(s)
	}
	trees, err := filepath.Glob(filepath.Join(r.cache, "repositories", "*", "trees", "*"))
	must(t, err)
	if len(trees) != 2 {
		t.Errorf("there are %d trees, want 2: %v", len(trees), trees)
	}
}

// In a folder that others may write the cache is a folder of its own, unless that is
// another's.
func TestFolderOthersMayWrite(t *testing.T) {
	r := newRig(t)
	want := r.demo()
	must(t, os.MkdirAll(r.cache, 0o700))
	must(t, os.Chmod(r.cache, 0o777))
	s := r.store()
	r.want(r.sync(s), want)
	must(t, s.Close(t.Context()))
	inner := filepath.Join(r.cache, "sluice-cloud")
	if info, err := os.Stat(inner); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("got %v, %v", info, err)
	}
	must(t, os.Chmod(inner, 0o770))
	if _, err := r.store().Sync(t.Context(), path, ""); err == nil || !strings.Contains(err.Error(), "others could have put files into '"+inner+"'") {
		t.Errorf("got %v", err)
	}
	must(t, os.RemoveAll(inner))
	must(t, os.Symlink(t.TempDir(), inner))
	if _, err := r.store().Sync(t.Context(), path, ""); err == nil || !strings.Contains(err.Error(), "others could have put files into") {
		t.Errorf("a link: got %v", err)
	}
}

func TestNothingUnderPath(t *testing.T) {
	r := newRig(t)
	r.demo()
	if _, err := r.store().Sync(t.Context(), "s3://bucket/modles", ""); err == nil || err.Error() != "failed to poll model repository 's3://bucket/modles': there is nothing under this path" {
		t.Errorf("got %v", err)
	}
	s := r.store()
	r.sync(s)
	for key := range r.data {
		r.remove(key)
	}
	r.want(r.sync(s), nil) // emptied on purpose
}

func TestDirectory(t *testing.T) {
	vars := map[string]string{}
	s := New(Config{Env: func(name string) (string, bool) { v, ok := vars[name]; return v, ok }})
	ask := func(scheme string) string {
		dir, err := s.directory(scheme)
		if err != nil {
			return err.Error()
		}
		return dir
	}
	got := []string{ask(S3)}
	vars["HOME"] = "/home/x"
	got = append(got, ask(S3))
	vars["XDG_CACHE_HOME"] = "/var/cache/x"
	got = append(got, ask(S3))
	s.cfg.Directory = "/models"
	got = append(got, ask(S3))
	vars["TRITON_AWS_MOUNT_DIRECTORY"], vars["TRITON_GCS_MOUNT_DIRECTORY"], vars["TRITON_AZURE_MOUNT_DIRECTORY"] = "/aws", "/gcs", "/azure"
	got = append(got, ask(S3), ask(GCS), ask(Azure))
	want := []string{"there is no folder for copies of the cloud's models: give --cloud-cache-directory", "/home/x/.cache/sluice/cloud",
		"/var/cache/x/sluice/cloud", "/models", "/aws", "/gcs", "/azure"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
