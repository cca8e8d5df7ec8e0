package repository

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// CacheConfig says which response cache there is; the zero value is none.
type CacheConfig struct {
	On     bool
	Shared bool // other processes have it, too: versions are known by their content
}

// The parameters of a model's config that the response cache reads; the original has no
// such things and ignores them.
const (
	CacheTTLParameter  = "response_cache_ttl"  // seconds, or a duration with its unit; 0: no end
	CacheTagsParameter = "response_cache_tags" // separated by commas
)

// generation is what tells a loaded version from what was loaded before, for the
// response cache.
type generation struct {
	load    uint64         // unique to this load in this process; never 0
	subject *cache.Subject // nil: answers are not kept

	repository *Repository
	mu         sync.Mutex
	steps      []byte         // mu; loads of an ensemble's steps
	view       *view          // mu; where steps were looked up
	current    *cache.Subject // mu; subject with these steps
}

// generate sets m's generation. With a shared cache it reads the files of a model whose
// answers are kept; it is called before the version is ready.
func (r *Repository) generate(ctx context.Context, m *Model, spec *LoadSpec) error {
	g := &m.generation
	g.load, g.repository = r.generations.Add(1), r
	cfg := spec.Config
	if !cfg.GetResponseCache().GetEnable() {
		return nil
	}
	ttl, err := cacheTTL(cfg)
	if err != nil || !r.cfg.Cache.On {
		if err == nil {
			r.deps.Log.Warn(fmt.Sprintf("model '%s' version %d has response_cache, but there is no --cache-config: its answers are not kept",
				m.Name, m.Version))
		}
		return err
	}
	s := &cache.Subject{Model: m.Name, Version: m.versionText, Load: g.load, TTL: ttl,
		Tags:    cache.ParseTags(cfg.GetParameters()[CacheTagsParameter].GetStringValue()),
		Ordered: cfg.GetDynamicBatching().GetPreserveOrdering()}
	if r.cfg.Cache.Shared {
		if s.Content, err = content(ctx, spec); err != nil {
			return fmt.Errorf("reading the version for the response cache: %w", err)
		}
	}
	g.subject = s
	return nil
}

// cacheTTL reads response_cache_ttl; absent is 0, a level's default, and "0" is
// negative, no end.
func cacheTTL(cfg *configpb.ModelConfig) (time.Duration, error) {
	p, ok := cfg.GetParameters()[CacheTTLParameter]
	if !ok {
		return 0, nil
	}
	ttl, err := cache.ParseTTL(p.GetStringValue())
	if err != nil {
		return 0, infer.Errorf(infer.InvalidArg, "parameter '%s' for %s: %w", CacheTTLParameter, cfg.GetName(), err)
	}
	if ttl == 0 {
		ttl = -1
	}
	return ttl, nil
}

// Current is the version as the response cache knows it now; nil: its answers are not
// kept. That of an ensemble changes with what its steps would run.
func (m *Model) Current() *cache.Subject {
	g := &m.generation
	if g.subject == nil || len(m.needs) == 0 {
		return g.subject
	}
	v := g.repository.view.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.view == v {
		return g.current
	}
	steps := m.appendSteps(nil, v, maxNesting)
	if g.current == nil || string(steps) != string(g.steps) {
		s := *g.subject
		s.Load = g.repository.generations.Add(1)
		s.Content = m.contentWith(v)
		g.current, g.steps = &s, steps
	}
	g.view = v
	return g.current
}

// maxNesting bounds how deep ensembles are followed into one another.
const maxNesting = 32

// appendSteps lists the loads of all steps, and of theirs.
func (m *Model) appendSteps(b []byte, v *view, depth int) []byte {
	for _, n := range m.needs {
		step := v.step(m.namespace, n)
		if step == nil || depth == 0 {
			b = binary.LittleEndian.AppendUint64(b, 0)
			continue
		}
		b = binary.LittleEndian.AppendUint64(b, step.generation.load)
		b = step.appendSteps(b, v, depth-1)
	}
	return b
}

// contentWith is an ensemble's content with that of its steps, or zero where one of
// them is not known: then its answers stay in this process.
func (m *Model) contentWith(v *view) [32]byte {
	sum := sha256.New()
	if !m.sumContent(sum, v, maxNesting) {
		return [32]byte{}
	}
	return [32]byte(sum.Sum(nil))
}

func (m *Model) sumContent(sum hash.Hash, v *view, depth int) bool {
	s := m.generation.subject
	if s == nil || s.Content == ([32]byte{}) || depth == 0 {
		return false
	}
	sum.Write(s.Content[:])
	for _, n := range m.needs {
		step := v.step(m.namespace, n)
		if step == nil {
			return false
		}
		sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(step.Version)))
		if !step.sumContent(sum, v, depth-1) {
			return false
		}
	}
	return true
}

// Turn waits until every request that was queued before has been answered, where the
// scheduler keeps an order.
func (m *Model) Turn(ctx context.Context, req *infer.Request) error {
	return m.scheduler.Turn(ctx, req)
}

// forget lets the response cache forget the version.
func (m *Model) forget(ctx context.Context, r *Repository) {
	g := &m.generation
	if r.deps.Forget == nil || g.subject == nil {
		return
	}
	r.deps.Forget(ctx, g.subject.Load)
	g.mu.Lock()
	current := g.current
	g.mu.Unlock()
	if current != nil {
		r.deps.Forget(ctx, current.Load)
	}
}

// content hashes all that decides on a version's answers: its completed config, the
// settings of its backend, the version folder, and what else stands in the model's
// folder but other versions. Files are streamed.
func content(ctx context.Context, spec *LoadSpec) ([32]byte, error) {
	sum := sha256.New()
	cfg, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec.Config)
	if err != nil {
		return [32]byte{}, err
	}
	write := func(b []byte) {
		sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		sum.Write(b)
	}
	write(cfg)
	write([]byte(spec.Backend))
	for _, k := range slices.Sorted(maps.Keys(spec.Options)) {
		write([]byte(k))
		write([]byte(spec.Options[k]))
	}
	w := walker{ctx: ctx, write: write, sum: sum, left: maxFiles}
	if spec.BackendFile != "" {
		if err := w.file(spec.BackendFile); err != nil {
			return [32]byte{}, err
		}
	}
	skip := func(name string) bool {
		n, err := strconv.ParseInt(name, 10, 64)
		return err == nil && n != spec.Version || name == "config.pbtxt" || name == "configs"
	}
	if spec.ModelDir != "" {
		if err := w.folder(spec.ModelDir, "", skip, maxNesting); err != nil {
			return [32]byte{}, err
		}
	}
	return [32]byte(sum.Sum(nil)), nil
}

// walker hashes folders: every file's path, size and bytes, by name.
type walker struct {
	ctx   context.Context
	write func([]byte)
	sum   hash.Hash
	left  int // files and folders that may follow: those behind links count each time
}

func (w *walker) folder(dir, path string, skip func(string) bool, depth int) error {
	if depth == 0 {
		return infer.Errorf(infer.InvalidArg, "folder '%s' is nested too deep", path)
	}
	list, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	for _, f := range list {
		name := f.Name()
		if skip != nil && skip(name) {
			continue
		}
		if w.left--; w.left < 0 {
			return errManyFiles
		}
		at, full := path+"/"+name, filepath.Join(dir, name)
		info, err := os.Stat(full) // what a link points at
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			w.write([]byte(at + "/"))
			err = w.folder(full, at, nil, depth-1)
		case info.Mode().IsRegular():
			w.write([]byte(at))
			err = w.file(full)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) file(name string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	n, err := io.Copy(w.sum, f)
	w.sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
