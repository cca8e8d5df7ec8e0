package repository

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// source is what the serving versions of a model were made of. It is never changed.
type source struct {
	dir   string                // the model's folder in its repository; "": all came with the call
	look  look                  // at dir, before anything was read
	cfg   *configpb.ModelConfig // completed without the model file
	owned bool                  // by a lease: nothing can be kept for the next load
	said  bool                  // the config file had fields
	call  bool                  // a load call brought the config or the files

	renamed bool // as Folder.Renamed
}

// change is one load of a model, from its folder or a call to its versions.
type change struct {
	r      *Repository
	k      key
	folder Folder
	call   *Override
	tried  look
	lease  *lease
	plan   *Plan

	prev    *source
	serving map[int64]*Model
	build   []int64          // versions to be built
	likes   map[int64]*Model // of build: those whose model stays, only its instances change
	built   map[int64]*Model // what could be built
	failed  map[int64]error  // what could not
	useless []*Model         // built, but not to be served
	over    []*Model         // replaced or dropped by the swap
	keep    map[int64]bool   // of the plan's versions: they go on as they are
	poll    bool             // somebody may be writing to the folder
	pending *pendingLoad     // what later calls end
	said    bool             // the config file has fields
	started time.Time
}

// errNoModel says that no repository has the model.
var errNoModel = errors.New("model not found in any model repository")

// errTorn says that a model's files changed under its load.
var errTorn = errors.New("the model's files changed while they were read")

func (r *Repository) newChange(f Folder, l *pendingLoad, poll bool) *change {
	return &change{r: r, k: f.key(), folder: f, call: l.call, poll: poll, pending: l, started: time.Now(),
		lease: &lease{r: r, name: f.Name, uses: 1}}
}

// reload makes a model serve what its folder, or the call, says. The caller holds the
// model's turn. Where something serves already it goes on until all is ready that takes
// its place, and stays when that fails. The error is what a load call answers. When ctx ends
// it returns at once: see tryBuild.
func (c *change) reload(ctx context.Context) error {
	r := c.r
	c.now()
	if !c.call.hasFiles() {
		var err error
		c.tried, err = lookAt(c.folder.Dir)
		r.pending.saw(c.pending, c.tried)
		if err != nil {
			return c.refuse(infer.Errorf(infer.Internal, "failed to read the model folder: %w", err))
		}
		if c.idle() {
			return nil
		}
	}
	err := c.prepare(ctx)
	if err == nil {
		err = r.readySteps(ctx, c)
	}
	if over := wasOvertaken(ctx); err != nil && over != nil {
		return c.yield(ctx, over)
	}
	if err != nil {
		c.lease.fail(ctx)
		return c.refuse(err)
	}
	c.compare()
	c.announce()
	c.buildAll(ctx)
	switch {
	case ctx.Err() != nil:
		c.discard(stopped(ctx))
		if err := wasOvertaken(ctx); err != nil && len(c.failed) > 0 {
			return c.yield(ctx, err)
		}
	case c.poll && len(c.built) > 0 && c.torn():
		c.discard(errTorn)
	}
	return c.finish(ctx)
}

// discard lets nothing be served of what was built.
func (c *change) discard(why error) {
	for n, m := range c.built {
		c.failed[n] = why
		c.useless = append(c.useless, m)
	}
	clear(c.built)
}

// now reads what serves.
func (c *change) now() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.serving = map[int64]*Model{}
	e := c.r.entries[c.k]
	if e == nil {
		return
	}
	c.prev = e.source
	for n, v := range e.versions {
		if v.state == Ready {
			c.serving[n] = v.model
		}
	}
}

// called says that a load call brought the config or the files: this one, or one before
// that an ensemble comes back with.
func (c *change) called() bool { return !c.call.empty() || c.folder.Config != nil }

// idle says that the folder is as it was, and all of it serves. It ends what was noted of
// loads in between, of something else, that failed.
func (c *change) idle() bool {
	if !c.call.empty() || c.prev == nil || c.prev.call || c.prev.dir != c.folder.Dir || !c.prev.look.same(c.tried) || len(c.prev.cfg.GetEnsembleScheduling().GetStep()) > 0 {
		return false
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	e := c.r.entries[c.k]
	if e.fault != "" || len(c.serving) == 0 {
		return false
	}
	for _, v := range e.versions {
		if v.state == Ready && v.model.broken() || v.state != Ready && v.reason != reasonUnloaded {
			return false
		}
	}
	for n := range c.serving {
		e.versions[n].reason = "" // of a load of something else, which failed
	}
	e.tried = c.tried
	return true
}

// prepare lays files down, runs the agents, and reads and checks the config.
func (c *change) prepare(ctx context.Context) error {
	cfg, err := c.call.parse(c.folder.Name)
	if err != nil {
		return err
	}
	f := c.folder
	if cfg != nil { // else that of an earlier call, if an ensemble comes back with it
		f.Config = cfg
	}
	if err := c.emptied(f); err != nil {
		return err
	}
	if files := c.call.written; files != nil {
		c.lease.files, c.lease.dir = files, files.take()
		if files.err != nil {
			return files.err
		}
		f.Dir = c.lease.dir
	}
	if f.Dir, err = c.agents(ctx, f); err != nil {
		return err
	}
	c.plan, err = c.open(ctx, f)
	return err
}

// emptied refuses a config file that had fields when it was read last and has none now, as one has that was truncated
// and not written again. A config that is to be completed from the model's files is removed, not emptied.
func (c *change) emptied(f Folder) error {
	cfg, src, err := f.writtenConfig(true)
	c.said = err == nil && proto.Size(cfg) > 0
	if err == nil && src != nil && !c.said && c.poll && c.prev != nil && c.prev.said {
		return infer.Errorf(infer.InvalidArg, "%s says nothing, and had a configuration before; remove it if it is to be completed", f.configFile())
	}
	return nil // what else is wrong is told when it is opened
}

// agents runs the config's agents and gives the folder to read.
func (c *change) agents(ctx context.Context, f Folder) (string, error) {
	cfg, _, err := f.readConfig(true)
	if err != nil || len(cfg.GetModelRepositoryAgents().GetAgents()) == 0 || len(f.Also) > 0 {
		return f.Dir, nil // what is wrong with it is told when it is opened
	}
	if c.r.deps.Agents == nil {
		return "", infer.Errorf(infer.Unsupported, "model '%s': there are no repository agents here", f.Name)
	}
	run, err := c.r.deps.Agents.Load(ctx, AgentModel{Name: f.Name, Dir: f.Dir, Config: cfg, Scratch: c.r.scratch.folder})
	if err != nil {
		return "", err
	}
	c.lease.run = run
	return run.Dir(), nil
}

// compare decides what is built and what is kept.
func (c *change) compare() {
	c.likes, c.keep = map[int64]*Model{}, map[int64]bool{}
	var sameConfig, sameInstances bool
	owned := c.lease.run != nil || c.lease.dir != ""
	if c.prev != nil && !c.prev.owned && !owned && c.prev.dir == c.folder.Dir && len(Needs(c.plan.Config)) == 0 {
		sameConfig = proto.Equal(core(c.prev.cfg), core(c.plan.Config))
		sameInstances = proto.Equal(&configpb.ModelConfig{InstanceGroup: c.prev.cfg.InstanceGroup},
			&configpb.ModelConfig{InstanceGroup: c.plan.Config.InstanceGroup})
	}
	for _, n := range c.plan.Versions {
		m := c.serving[n]
		switch {
		case m == nil || m.broken() || !sameConfig || !c.prev.look.sameVersion(c.tried, n):
			c.build = append(c.build, n)
		case sameInstances:
			c.keep[n] = true
		default:
			c.build = append(c.build, n)
			c.likes[n] = m
		}
	}
}

// core is a config without what can change while the model stays loaded.
func core(cfg *configpb.ModelConfig) *configpb.ModelConfig {
	cfg = proto.CloneOf(cfg)
	cfg.InstanceGroup, cfg.VersionPolicy = nil, nil
	return cfg
}

// announce shows the new versions as LOADING.
func (c *change) announce() {
	for _, n := range c.plan.Absent {
		c.r.deps.Log.Error(fmt.Sprintf("version %d is specified for model '%s', but the version directory is not present", n, c.k.name))
	}
	c.r.update(func(entries map[key]*entry) {
		e := c.r.entryLocked(c.k)
		e.fault, e.wanted = "", true
		for _, n := range c.build {
			if v := e.versions[n]; v == nil || v.state != Ready && v.state != Unloading {
				e.versions[n] = &version{state: Loading}
			}
		}
	})
}

func (c *change) buildAll(ctx context.Context) {
	c.built, c.failed = map[int64]*Model{}, map[int64]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range c.build {
		wg.Go(func() {
			m, err := c.tryBuild(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				c.failed[n] = err
				return
			}
			m.lease = c.lease
			c.lease.take()
			c.built[n] = m
		})
	}
	wg.Wait()
}

func (c *change) torn() bool {
	later, err := lookAt(c.folder.Dir)
	return err != nil || c.tried.torn(later)
}

// refuse notes a load that failed before any version could be built.
func (c *change) refuse(err error) error {
	r, name := c.r, c.k.name
	r.deps.Log.Error(fmt.Sprintf("failed to load model '%s': %s", name, err))
	r.update(func(map[key]*entry) {
		e := r.entryLocked(c.k)
		e.tried = c.tried
		if len(c.serving) > 0 {
			for n := range c.serving {
				if c.call.empty() { // else the caller alone did wrong, and is told
					e.versions[n].reason = reason(err)
				}
			}
			return
		}
		e.fault, e.wanted = reason(err), true
		if c.plan != nil {
			for _, n := range c.plan.Versions { // versions that would have been served are shown with the reason
				e.versions[n] = &version{state: Unavailable, reason: e.fault}
			}
		}
	})
	return &LoadError{Name: name, Polled: c.plan != nil && c.plan.checked, Err: err}
}

// yield ends a load in favour of a later call: what the index says of the model is that call's.
func (c *change) yield(ctx context.Context, err error) error {
	c.r.deps.Log.Info(err.Error())
	c.r.update(func(map[key]*entry) {
		e := c.r.entryLocked(c.k)
		for n := range c.failed {
			if v := e.versions[n]; v != nil && v.state == Loading {
				v.state, v.reason = Unavailable, reasonUnloaded
			}
		}
	})
	c.lease.fail(ctx)
	c.r.retireLater(ctx, c.useless, nil)
	return err
}

// finish swaps in what was built, or gives it up where a version failed and others
// serve.
func (c *change) finish(ctx context.Context) error {
	r := c.r
	give := len(c.failed) > 0 && len(c.serving) > 0
	swapped := false
	r.update(func(map[key]*entry) {
		if r.closed {
			return
		}
		e := r.entryLocked(c.k)
		e.tried = c.tried
		c.note(e, give)
		if give {
			return
		}
		swapped = true
		c.swap(e)
	})
	if !swapped {
		c.lease.fail(ctx)
		r.retireLater(ctx, slices.AppendSeq(c.useless, maps.Values(c.built)), nil)
		if len(c.failed) == 0 {
			return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "failed to load model '%s': the server is shutting down", c.k.name)
		}
		return c.err()
	}
	c.log()
	if len(c.built) == 0 && len(c.failed) > 0 {
		c.lease.fail(ctx)
		r.retireLater(ctx, c.useless, nil)
		return c.err()
	}
	c.lease.tell(ctx, EventLoadComplete)
	c.lease.give(ctx)
	r.retireLater(ctx, c.over, r.unloaded(c.k))
	settle(ctx, c.over)
	return c.err()
}

// note shows why versions failed.
func (c *change) note(e *entry, give bool) {
	for n, err := range c.failed {
		c.r.deps.Log.Error(fmt.Sprintf("failed to load '%s' version %d: %s", c.k.name, n, reason(err)))
		v := e.versions[n]
		if v == nil || v.state != Ready { // a reload that fails leaves the old one serving
			e.versions[n] = &version{state: Unavailable, reason: reason(err)}
			continue
		}
		if c.call.empty() {
			v.reason = reason(err)
		}
	}
	if !give {
		return
	}
	for n := range c.built { // could serve, but not without the others
		if v := e.versions[n]; v != nil && v.state == Loading {
			delete(e.versions, n)
		}
	}
}

// swap makes the view of the new versions possible: r.mu is held.
func (c *change) swap(e *entry) {
	e.source = &source{dir: c.folder.Dir, look: c.tried, cfg: c.plan.Config, owned: c.lease.run != nil || c.lease.dir != "",
		call: c.called(), renamed: c.folder.Renamed, said: c.said}
	for n, m := range c.built {
		if v := e.versions[n]; v != nil && v.state == Ready {
			c.over = append(c.over, v.model)
		}
		e.versions[n] = &version{state: Ready, model: m}
	}
	for n, v := range e.versions {
		if c.built[n] != nil || c.failed[n] != nil {
			continue
		}
		switch {
		case c.keep[n]:
			v.reason = ""
		case v.state == Ready:
			v.state, v.reason = Unloading, ""
			c.over = append(c.over, v.model)
		}
	}
}

func (c *change) log() {
	for _, n := range slices.Sorted(maps.Keys(c.built)) {
		m := c.built[n]
		if m.stats != nil {
			m.stats.SetLoadDuration(time.Since(c.started))
		}
		all, _ := m.Instances()
		text := "successfully loaded '%s' version %d"
		if c.likes[n] != nil {
			text = "successfully changed the instances of '%s' version %d"
		}
		c.r.deps.Log.Info(fmt.Sprintf(text, c.k.name, n), slog.Int("instances", all), slog.Duration("took", time.Since(c.started)))
	}
}

func (c *change) err() error {
	if len(c.failed) == 0 {
		return nil
	}
	return &LoadError{Name: c.k.name, Versions: c.failed}
}

// LoadError says why a model was not loaded, in the original's words. Its code is that
// of the original's answer: Internal where the model was not found or its config is
// wrong, InvalidArg where it was read and could not be loaded.
// Source: ModelRepositoryManager::LoadUnloadModel of the original.
type LoadError struct {
	Name     string
	Polled   bool            // the config was read and is sound
	Err      error           // why no version was tried; nil: Versions say it
	Versions map[int64]error // those that failed
}

// Error is the text for clients.
func (e *LoadError) Error() string {
	switch {
	case e.Err == nil:
		var b strings.Builder
		for _, n := range slices.Sorted(maps.Keys(e.Versions)) {
			fmt.Fprintf(&b, "version %d is at UNAVAILABLE state: %s;", n, reason(e.Versions[n]))
		}
		return fmt.Sprintf("load failed for model '%s': %s\n", e.Name, &b)
	case e.Polled:
		return fmt.Sprintf("load failed for model '%s': %s\n", e.Name, e.Err)
	case errors.Is(e.Err, errNoModel):
		return fmt.Sprintf("failed to load '%s', failed to poll from model repository", e.Name)
	}
	return fmt.Sprintf("failed to load '%s', failed to poll from model repository: %s", e.Name, e.Err)
}

// Unwrap gives the code, and the causes.
func (e *LoadError) Unwrap() []error {
	code := infer.InvalidArg
	if e.Err != nil && !e.Polled {
		code = infer.Internal
	}
	causes := []error{&infer.Error{Code: code, Err: errors.New("load failed")}}
	if e.Err != nil {
		causes = append(causes, e.Err)
	}
	for _, n := range slices.Sorted(maps.Keys(e.Versions)) {
		causes = append(causes, e.Versions[n])
	}
	return causes
}
