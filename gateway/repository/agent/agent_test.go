package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/repository/internal/logtest"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// bench is a folder of agents and a model.
type bench struct {
	t      *testing.T
	dir    string
	model  Model
	log    *logtest.Book
	agents *Agents
}

func newBench(t *testing.T, timeout time.Duration) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, dir: dir, log: &logtest.Book{}}
	for _, sub := range []string{"agents", "scratch", "model/1"} {
		must(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	b.model = Model{Name: "m", Location: filepath.Join(dir, "model"), Config: &configpb.ModelConfig{Name: "m"},
		Scratch: func() (string, error) { return os.MkdirTemp(filepath.Join(dir, "scratch"), "") }}
	b.agents = New(Config{Directory: filepath.Join(dir, "agents"), Timeout: timeout,
		Environ: Environment([]string{"SECRET=no", "SLUICE_AGENT_KEY=yes", "TMPDIR=" + dir})}, slog.New(slog.NewTextHandler(b.log, nil)))
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) file(name, content string) {
	b.t.Helper()
	must(b.t, os.WriteFile(filepath.Join(b.model.Location, name), []byte(content), 0o644))
}

// script adds an agent that is a shell script and notes its questions in <dir>/<name>.
func (b *bench) script(name, body string) {
	b.t.Helper()
	dir := filepath.Join(b.dir, "agents", name)
	must(b.t, os.MkdirAll(dir, 0o755))
	text := fmt.Sprintf("#!/bin/sh\nq=$(cat)\nprintf '%%s\\n' \"$q\" >>%s\n%s\n", filepath.Join(b.dir, name), body)
	must(b.t, os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755))
}

// use puts an agent into the model's config: name, then keys and values.
func (b *bench) use(name string, parameters ...string) {
	all := map[string]string{}
	for i := 0; i < len(parameters); i += 2 {
		all[parameters[i]] = parameters[i+1]
	}
	if b.model.Config.ModelRepositoryAgents == nil {
		b.model.Config.ModelRepositoryAgents = &configpb.ModelRepositoryAgents{}
	}
	a := b.model.Config.ModelRepositoryAgents
	a.Agents = append(a.Agents, &configpb.ModelRepositoryAgents_Agent{Name: name, Parameters: all})
}

// questions are what a script was asked, in order.
func (b *bench) questions(name string) []Question {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	must(b.t, err)
	var all []Question
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var q Question
		must(b.t, json.Unmarshal([]byte(line), &q))
		all = append(all, q)
	}
	return all
}

func (b *bench) noScratch() {
	b.t.Helper()
	left, err := os.ReadDir(filepath.Join(b.dir, "scratch"))
	must(b.t, err)
	if len(left) > 0 {
		b.t.Errorf("folders of agents are left: %v", left)
	}
}

func TestChecksum(t *testing.T) {
	const md5Sum, shaSum = "5d41402abc4b2a76b9719d911017c592", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	for name, c := range map[string]struct {
		key, value string
		code       infer.Code
		want       string // "": it loads
	}{
		"right":           {key: "MD5:1/data", value: md5Sum},
		"lower case":      {key: "md5:1/data", value: md5Sum},
		"digits in upper": {key: "MD5:1/data", value: strings.ToUpper(md5Sum)},
		"sha256":          {key: "SHA256:1/data", value: shaSum},
		"sha-256":         {key: "sha-256:1/data", value: shaSum},
		"wrong":           {"MD5:1/data", "x", infer.InvalidArg, "Mismatched MD5 hash for file 1/data, expect: x, got: " + md5Sum},
		"wrong sha":       {"SHA256:1/data", md5Sum, infer.InvalidArg, "Mismatched SHA256 hash for file 1/data, expect: " + md5Sum + ", got: " + shaSum},
		"no algorithm":    {"1/data", md5Sum, infer.InvalidArg, "failed to parse key: 1/data"},
		"other algorithm": {"CRC:1/data", md5Sum, infer.Unsupported, "Unsupported checksum algorithm: CRC"},
		"missing":         {"MD5:none", md5Sum, infer.InvalidArg, "failed to open text file for read none: No such file or directory"},
		"a folder":        {"MD5:1", md5Sum, infer.InvalidArg, "failed to open text file for read 1: it is no plain file"},
		"a pipe":          {"MD5:pipe", md5Sum, infer.InvalidArg, "failed to open text file for read pipe: it is no plain file"},
		"above":           {"MD5:../model/1/data", md5Sum, infer.InvalidArg, "file path '../model/1/data' is outside model directory"},
		"absolute":        {"MD5:/etc/passwd", md5Sum, infer.InvalidArg, "file path '/etc/passwd' is outside model directory"},
		"a link outside":  {"MD5:out", md5Sum, infer.InvalidArg, "failed to open text file for read out: openat out: path escapes from parent"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, time.Minute)
			b.file("1/data", "hello")
			must(t, syscall.Mkfifo(filepath.Join(b.model.Location, "pipe"), 0o600))
			must(t, os.Symlink("/etc/passwd", filepath.Join(b.model.Location, "out")))
			b.use(Checksum, c.key, c.value)
			life, err := b.agents.Load(t.Context(), b.model)
			if c.want == "" {
				if err != nil || life.Location() != b.model.Location {
					t.Fatalf("got %v, want it to load from its folder", err)
				}
				return
			}
			if err == nil || infer.CodeOf(err) != c.code || !sameUpTo(err.Error(), c.want) {
				t.Fatalf("got %v (%v), want %q (%v)", err, infer.CodeOf(err), c.want, c.code)
			}
		})
	}
}

// sameUpTo allows the system call's name to differ, as in "statat out".
func sameUpTo(got, want string) bool {
	return got == want || got == strings.Replace(want, "openat", "statat", 1)
}

func TestChecksumStops(t *testing.T) {
	b := newBench(t, time.Minute)
	b.file("1/data", "hello")
	b.use(Checksum, "MD5:1/data", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.agents.Load(ctx, b.model); infer.CodeOf(err) != infer.Unavailable {
		t.Fatalf("got %v, want that the checksum was not finished", err)
	}
}

func TestLifeInOrder(t *testing.T) {
	b := newBench(t, time.Minute)
	order := filepath.Join(b.dir, "order")
	for _, name := range []string{"a", "b"} {
		b.script(name, `event=$(printf %s "$q" | sed 's/.*"event":"\([A-Z_]*\)".*/\1/'); echo "`+name+` $event" >>`+order)
		b.use(name, "key", "value of "+name)
	}
	life, err := b.agents.Load(t.Context(), b.model)
	must(t, err)
	life.Unloading(t.Context()) // too early: nothing happens
	life.Loaded(t.Context())
	life.Failed(t.Context()) // too late: nothing happens
	life.Unloading(t.Context())
	life.Unloaded(t.Context())
	life.Unloaded(t.Context())
	text, err := os.ReadFile(order)
	must(t, err)
	want := "a LOAD\nb LOAD\nb LOAD_COMPLETE\na LOAD_COMPLETE\na UNLOAD\nb UNLOAD\nb UNLOAD_COMPLETE\na UNLOAD_COMPLETE\n"
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	q := b.questions("b")[0]
	if q.Protocol != 1 || q.Agent != "b" || q.Model != "m" || q.Location != b.model.Location || q.Parameters["key"] != "value of b" ||
		!strings.HasPrefix(q.Scratch, b.dir) || string(q.Config) == "" {
		t.Errorf("asked %+v", q)
	}
	b.noScratch()
}

func TestLocationIsReplaced(t *testing.T) {
	b := newBench(t, time.Minute)
	b.file("1/data", "hello")
	b.script("copy", `scratch=$(printf %s "$q" | sed 's/.*"scratch":"\([^"]*\)".*/\1/')
case $q in *'"LOAD"'*) mkdir "$scratch/new" && cp -r `+b.model.Location+`/. "$scratch/new" && printf '{"location":"%s/new"}' "$scratch";; esac`)
	b.use("copy")
	b.use(Checksum, "MD5:1/data", "5d41402abc4b2a76b9719d911017c592")
	b.script("look", "")
	b.use("look")
	life, err := b.agents.Load(t.Context(), b.model)
	must(t, err)
	if life.Location() == b.model.Location || filepath.Base(life.Location()) != "new" {
		t.Errorf("the location is %s", life.Location())
	}
	if got := b.questions("look")[0].Location; got != life.Location() {
		t.Errorf("the agent behind was handed %s, want %s", got, life.Location())
	}
	if text, err := os.ReadFile(filepath.Join(life.Location(), "1", "data")); err != nil || string(text) != "hello" {
		t.Errorf("read %q, %v", text, err)
	}
	life.Loaded(t.Context())
	life.Unloading(t.Context())
	life.Unloaded(t.Context())
	b.noScratch()
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"answer":           {`echo '{"error":"the signature is wrong"}'`, "repo agent 'x': the signature is wrong"},
		"status":           {"echo first >&2; echo '  why  ' >&2; exit 3", "repo agent 'x' failed on LOAD: exit status 3: why"},
		"silent status":    {"exit 4", "repo agent 'x' failed on LOAD: exit status 4"},
		"no JSON":          {"echo hello", "repo agent 'x' answered LOAD with what is no answer: invalid character 'h' looking for beginning of value"},
		"unknown field":    {`echo '{"place":"/"}'`, `repo agent 'x' answered LOAD with what is no answer: json: unknown field "place"`},
		"two objects":      {`echo '{}{}'`, "repo agent 'x' answered LOAD with what is no answer: something follows the JSON object"},
		"too much":         {"head -c 70000 /dev/zero", "repo agent 'x' answered LOAD with more than 65536 bytes"},
		"elsewhere":        {`echo '{"location":"/etc"}'`, "repo agent 'x': location '/etc' is not in the folder that was made for it"},
		"not there":        {`echo '{"location":"/none"}'`, "repo agent 'x': its location can't be used: lstat /none: no such file or directory"},
		"own death":        {"kill -9 $$", "repo agent 'x' failed on LOAD: signal: killed"},
		"error and status": {`echo '{"error":"no key"}'; exit 1`, "repo agent 'x': no key"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, time.Minute)
			b.script("first", "")
			b.use("first")
			b.script("x", c.body)
			b.use("x")
			b.script("never", "")
			b.use("never")
			_, err := b.agents.Load(t.Context(), b.model)
			if err == nil || err.Error() != c.want || infer.CodeOf(err) != infer.InvalidArg {
				t.Fatalf("got %v (%v), want %s", err, infer.CodeOf(err), c.want)
			}
			for _, name := range []string{"first", "x"} {
				var events []Event
				for _, q := range b.questions(name) {
					events = append(events, q.Event)
				}
				if !slices.Equal(events, []Event{Load, LoadFail}) {
					t.Errorf("%s heard %v, want LOAD and LOAD_FAIL", name, events)
				}
			}
			if exists(filepath.Join(b.dir, "never")) {
				t.Error("the agent behind the one that refused was asked")
			}
			b.noScratch()
		})
	}
}

func TestLocationOnlyAtLoad(t *testing.T) {
	b := newBench(t, time.Minute)
	b.script("x", `case $q in *'"LOAD"'*) ;; *) echo '{"location":"/tmp"}';; esac`)
	b.use("x")
	life, err := b.agents.Load(t.Context(), b.model)
	must(t, err)
	life.Loaded(t.Context())
	if want := "the location can only be changed on LOAD, not on LOAD_COMPLETE"; !strings.Contains(b.log.String(), want) {
		t.Errorf("the log has no %q:\n%s", want, b.log)
	}
}

func TestNotFound(t *testing.T) {
	b := newBench(t, time.Minute)
	library := filepath.Join(b.dir, "agents", "old")
	must(t, os.MkdirAll(library, 0o755))
	must(t, os.WriteFile(filepath.Join(library, "libtritonrepoagent_old.so"), nil, 0o644))
	plain := filepath.Join(b.dir, "agents", "plain")
	must(t, os.MkdirAll(plain, 0o755))
	must(t, os.WriteFile(filepath.Join(plain, program), nil, 0o644))
	b.script("open", "")
	must(t, os.Chmod(filepath.Join(b.dir, "agents", "open", program), 0o777))
	agents := filepath.Join(b.dir, "agents")
	for name, want := range map[string]string{
		"none":   "unable to find 'agent' for repo agent 'none', searched: " + agents,
		"old":    "unable to find 'agent' for repo agent 'old', searched: " + agents + "; 'libtritonrepoagent_old.so' is there, but such libraries are not loaded",
		"plain":  "repo agent 'plain': '" + filepath.Join(plain, program) + "' is not executable",
		"open":   "repo agent 'open': everybody may write '" + filepath.Join(agents, "open", program) + "'; it is not started",
		"../x":   "'../x' is no name of a repo agent",
		".":      "'.' is no name of a repo agent",
		"":       "'' is no name of a repo agent",
		"a\x00b": "'a\x00b' is no name of a repo agent",
	} {
		b.model.Config.ModelRepositoryAgents = nil
		b.use(name)
		if _, err := b.agents.Load(t.Context(), b.model); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", name, err, want)
		}
	}
}

func TestTimeoutEndsTheGroup(t *testing.T) {
	b := newBench(t, 300*time.Millisecond)
	b.script("slow", "sleep 1000 & echo $! >"+filepath.Join(b.dir, "pid")+"\nsleep 1000")
	b.use("slow")
	begin := time.Now()
	_, err := b.agents.Load(t.Context(), b.model)
	if want := "repo agent 'slow' did not answer LOAD in 300ms; it was ended"; err == nil || err.Error() != want || infer.CodeOf(err) != infer.Unavailable {
		t.Fatalf("got %v, want %s", err, want)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	b.gone("pid")
	b.noScratch()
}

// What an agent leaves running ends with it, though it answered in time.
func TestLeftoversEnd(t *testing.T) {
	b := newBench(t, time.Minute)
	b.script("fork", "sleep 1000 >/dev/null 2>&1 & echo $! >"+filepath.Join(b.dir, "pid"))
	b.use("fork")
	_, err := b.agents.Load(t.Context(), b.model)
	must(t, err)
	b.gone("pid")
}

// gone waits until a process whose number is in a file has ended.
func (b *bench) gone(name string) {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	must(b.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(b.t, err)
	for end := time.Now().Add(10 * time.Second); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("process %d of the agent still runs", pid)
		}
	}
}

func TestEnvironmentAndLog(t *testing.T) {
	b := newBench(t, time.Minute)
	b.script("env", "env >"+filepath.Join(b.dir, "env.txt")+"\necho 'a word \"quoted\"' >&2\nseq 1 300 >&2\nhead -c 9000 /dev/zero | tr '\\0' y >&2")
	b.use("env")
	_, err := b.agents.Load(t.Context(), b.model)
	must(t, err)
	text, err := os.ReadFile(filepath.Join(b.dir, "env.txt"))
	must(t, err)
	if strings.Contains(string(text), "SECRET") || !strings.Contains(string(text), "SLUICE_AGENT_KEY=yes\n") || !strings.Contains(string(text), "TMPDIR=") {
		t.Errorf("the environment is\n%s", text)
	}
	log := b.log.String()
	if !strings.Contains(log, `repo agent: a word \"quoted\"`) || !strings.Contains(log, "more than 199 lines; the rest is left out") || strings.Contains(log, "repo agent: 250") {
		t.Errorf("the log is\n%s", log)
	}
}

func TestCheckAsksNobody(t *testing.T) {
	b := newBench(t, time.Minute)
	b.file("1/data", "hello")
	b.script("x", "")
	b.use(Checksum, "MD5:1/data", "5d41402abc4b2a76b9719d911017c592")
	b.use("x")
	b.use(Checksum, "MD5:1/data", "of what x makes of it")
	if err := b.agents.Check(t.Context(), b.model); err != nil || exists(filepath.Join(b.dir, "x")) {
		t.Errorf("got %v; or x was asked", err)
	}
	b.file("1/data", "other")
	if err := b.agents.Check(t.Context(), b.model); err == nil || !strings.HasPrefix(err.Error(), "Mismatched MD5 hash for file 1/data") {
		t.Errorf("got %v", err)
	}
	b.model.Config.ModelRepositoryAgents = nil
	b.use("none")
	if err := b.agents.Check(t.Context(), b.model); err == nil || !strings.HasPrefix(err.Error(), "unable to find 'agent' for repo agent 'none'") {
		t.Errorf("got %v", err)
	}
}

// A life that ends without a word about it beginning to is told whole.
func TestUnloadedAlone(t *testing.T) {
	b := newBench(t, time.Minute)
	b.script("x", "")
	b.use("x")
	life, err := b.agents.Load(t.Context(), b.model)
	must(t, err)
	life.Loaded(t.Context())
	life.Unloaded(t.Context())
	var events []Event
	for _, q := range b.questions("x") {
		events = append(events, q.Event)
	}
	if !slices.Equal(events, []Event{Load, LoadComplete, Unload, UnloadComplete}) {
		t.Errorf("heard %v", events)
	}
	b.noScratch()
}

func TestNoAgentsNoLife(t *testing.T) {
	b := newBench(t, time.Minute)
	life, err := b.agents.Load(t.Context(), b.model)
	if life != nil || err != nil {
		t.Fatalf("got %v, %v", life, err)
	}
	// A nil life takes all its calls.
	life.Loaded(t.Context())
	life.Failed(t.Context())
	life.Unloading(t.Context())
	life.Unloaded(t.Context())
	if life.Location() != "" {
		t.Errorf("location %q", life.Location())
	}
}
