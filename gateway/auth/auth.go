package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
	"github.com/sluice-serve/sluice/internal/tick"
)

// Config says where identity and policy are written. The zero value asks nobody for who
// they are, and keeps what can harm to callers of this host.
type Config struct {
	Identity string // YAML file: how callers are known; "": none
	APIKeys  string // file of API keys, where the identity file names none
	Policy   string // YAML file: who may do what; "": none
	// AllowRemoteControl answers model control to everybody where there is no policy.
	AllowRemoteControl bool
	ClientMemory       ClientMemory  // who may register and list shared memory
	HTTP, GRPC         []Restriction // --http-restricted-api, --grpc-restricted-protocol
}

// Auth is pipeline.Guard. Make it with New; Run keeps it up to date.
type Auth struct {
	cfg    Config
	deps   Deps
	now    func() time.Time
	state  atomic.Pointer[state]
	epoch  atomic.Uint64 // counts changes of keys: what was proved before is proved again
	proved remembered

	// The loading goroutine's alone: New's caller, then Run.
	sources  map[sourceID]*source
	follower *configfile.Follower[*loading]
}

// state is all that files and flags say.
type state struct {
	identity   *identity
	policy     *Policy // nil: none
	remote     bool    // AllowRemoteControl
	memory     ClientMemory
	http, grpc restrictions
}

// provedBound is how many checked credentials are remembered.
const provedBound = 16384

// Deps are the collaborators of an Auth.
type Deps struct {
	Log *slog.Logger
	// Reloaded sees how each later reading of changed files went; nil: nobody counts.
	Reloaded func(err error)
}

// New reads all files; what is wrong with them is its error.
func New(cfg Config, deps Deps) (*Auth, error) {
	a := &Auth{cfg: cfg, deps: deps, now: time.Now, proved: newRemembered(provedBound), sources: map[sourceID]*source{}}
	follower, l, err := configfile.Open(maxFile, time.Now(), a.load)
	if err != nil {
		return nil, err
	}
	a.follower = follower
	a.use(l)
	return a, nil
}

// ReadsFiles says that something of c is in files, which are read again.
func (c *Config) ReadsFiles() bool {
	inFile := func(r Restriction) bool { return strings.HasPrefix(r.Value, "@") }
	return c.Identity != "" || c.APIKeys != "" || c.Policy != "" || slices.ContainsFunc(c.HTTP, inFile) || slices.ContainsFunc(c.GRPC, inFile)
}

// Validate reads all files of a Config and gives what is wrong with them.
func (c Config) Validate() error {
	_, err := New(c, Deps{Log: slog.New(slog.DiscardHandler)})
	return err
}

// load reads all files into a new state.
func (a *Auth) load(r *configfile.Reading) (*loading, error) {
	l := &loading{files: r, log: a.deps.Log, fresh: func() { a.epoch.Add(1) }, sources: maps.Clone(a.sources),
		used: map[sourceID]*source{}}
	return l, l.load(&a.cfg)
}

// use puts what was loaded in force.
func (a *Auth) use(l *loading) {
	a.sources = l.used
	a.state.Store(l.state)
	a.epoch.Add(1)
}

func (l *loading) load(c *Config) error {
	st := &state{remote: c.AllowRemoteControl, memory: c.ClientMemory}
	var errs [4]error
	st.identity, errs[0] = l.identity(c.Identity, c.APIKeys)
	if c.Policy != "" {
		data, err := l.files.YAML(c.Policy, "")
		if err == nil {
			st.policy, err = ParsePolicy(c.Policy, data)
		}
		errs[1] = err
	}
	st.http, errs[2] = newRestrictions(c.HTTP, false, l.files.File)
	st.grpc, errs[3] = newRestrictions(c.GRPC, true, l.files.File)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("identity and policy: %w", err)
	}
	l.state = st
	return nil
}

// pollEvery is how often the files are looked at.
const pollEvery = configfile.Period / 2

// Run reads files again when they change, and fetches issuers' keys, until ctx ends.
func (a *Auth) Run(ctx context.Context) error {
	var fetching sync.WaitGroup
	defer fetching.Wait()
	running := map[*source]context.CancelFunc{}
	defer func() {
		for _, cancel := range running {
			cancel()
		}
	}()
	if a.follower.Fixed() { // nothing names an issuer
		<-ctx.Done()
		return nil
	}
	look := tick.New(pollEvery)
	defer look.Stop()
	for {
		a.follow(ctx, &fetching, running)
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			look.Next()
		}
		a.look(time.Now())
	}
}

// look looks at the files, and takes others once they are settled and good.
func (a *Auth) look(now time.Time) {
	loaded, result, err := a.follower.Look(now)
	switch result {
	case configfile.Unchanged:
		return
	case configfile.Changed:
		a.use(loaded)
	}
	if a.deps.Reloaded != nil {
		a.deps.Reloaded(err)
	}
	switch {
	case err != nil:
		a.deps.Log.Error("the old identity and policy stay in force", "error", err)
	case result == configfile.Changed:
		a.deps.Log.Info("identity and policy were read again")
	default:
		a.deps.Log.Info("the files of identity and policy are again those in force")
	}
}

// follow starts the sources that are new and ends those that are gone.
func (a *Auth) follow(ctx context.Context, fetching *sync.WaitGroup, running map[*source]context.CancelFunc) {
	wanted := map[*source]bool{}
	for _, s := range a.sources {
		wanted[s] = true
		if running[s] == nil {
			run, cancel := context.WithCancel(ctx)
			running[s] = cancel
			fetching.Go(func() { s.run(run) })
		}
	}
	for s, cancel := range running {
		if !wanted[s] {
			cancel()
			delete(running, s)
		}
	}
}

// nobody is who showed nothing.
var nobody = &infer.Principal{}

// Open is pipeline.Guard's: restricted APIs, who calls, and what they may do.
func (a *Auth) Open(_ context.Context, env *infer.Envelope) error { return a.open(env, false) }

// OpenForProxy is Open for a call that a proxy asks about, with the client's address and
// certificate in env: nobody stands between the two whose word would be taken.
func (a *Auth) OpenForProxy(_ context.Context, env *infer.Envelope) error { return a.open(env, true) }

func (a *Auth) open(env *infer.Envelope, asked bool) error {
	epoch := a.epoch.Load() // before the state: what an old one proves is not remembered for a new one
	st := a.state.Load()
	restricted := st.http
	if env.Protocol == "grpc" {
		restricted = st.grpc
	}
	shown, err := restricted.check(env)
	if err != nil {
		return err
	}
	if st.identity.on {
		if env.Principal, err = a.identify(asking{st.identity, epoch, asked}, env); err != nil {
			env.Principal = nobody
			if env.Action != infer.ActionHealth || st.policy != nil && st.policy.closedHealth {
				return err
			}
		}
	}
	if env.Action == infer.ActionSharedMemory && !a.allowsMemory(asking{st.identity, epoch, asked}, st.memory, env) {
		return errNoClientMemory
	}
	if st.policy != nil {
		return st.decide(env, env.Model)
	}
	if harmful(env) && !st.remote && !shown && !local(env) {
		return errNotLocal
	}
	return nil
}

// harmful says that a call could hurt the server or others, and so is not everybody's
// where nothing says whose it is.
// Source: DESIGN, "Identity, limits".
func harmful(env *infer.Envelope) bool {
	return env.Action == infer.ActionModelRepository && env.Change
}

var errNotLocal = infer.Refusef(infer.PermissionDenied, infer.ReasonNotLocal,
	"without a policy, model control is for callers on the server's own host (--policy or --allow-remote-control change that)")

// Model is pipeline.Guard's: it decides on a model that the call's headers did not name.
func (a *Auth) Model(env *infer.Envelope, model string) error {
	if st := a.state.Load(); st.policy != nil {
		return st.decide(env, model)
	}
	return nil
}

// decide asks the policy.
func (st *state) decide(env *infer.Envelope, model string) error {
	right := rightOf(env)
	if st.policy.allows(env.Principal, right, model) {
		return nil
	}
	on := ""
	if model != "" {
		on = " on model '" + strings.ToValidUTF8(model[:min(len(model), 128)], "") + "'"
	}
	if env.Principal == nil || env.Principal.Name == "" {
		return infer.Refusef(infer.Unauthenticated, infer.ReasonUnauthenticated, "'%s'%s needs a caller who is known", right, on)
	}
	return infer.Refusef(infer.PermissionDenied, infer.ReasonForbidden, "'%s' has no right to '%s'%s", env.Principal.Name, right, on)
}

// Sign gives the header ProofHeader for a caller; "" where the identity file has no
// key for it, or nobody is known.
func (a *Auth) Sign(p *infer.Principal) (string, error) {
	st := a.state.Load()
	if st.identity.signing == nil || p == nil || p.Name == "" {
		return "", nil
	}
	return signPrincipal(st.identity.signing, p, a.now())
}
