package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sluice-serve/sluice/infer"
)

// Config bounds what one owner may have. Zero values take the defaults.
type Config struct {
	// Prefixes are what keys may begin with; none: anything that is not reserved. In one
	// that has "{principal}" the caller's principal stands there, escaped.
	Prefixes   []string
	MaxRegions int    // of one owner; 0: DefaultMaxRegions
	MaxBytes   int64  // of one owner's regions; 0: DefaultMaxBytes
	Folder     string // where keys are files; "": /dev/shm
}

// The defaults of Config.
const (
	DefaultMaxRegions = 1024
	DefaultMaxBytes   = 64 << 30
)

// Validate says what is wrong with the prefixes; nil: nothing.
func (c *Config) Validate() error { return checkPrefixes(c.Prefixes) }

// Deps are the registry's collaborators.
type Deps struct {
	Workers infer.Regions
	Log     *slog.Logger
	// Local says that a call was made on this host, by nobody on behalf of another.
	Local func(*infer.Envelope) bool
}

// Registry is the regions of one gateway. Close ends it.
type Registry struct {
	cfg     Config
	workers infer.Regions
	log     *slog.Logger
	local   func(*infer.Envelope) bool
	folder  *os.File
	shared  sharedUID
	holds   sync.Pool // of *hold
	closing chan struct{}
	leaving sync.WaitGroup // goroutines of regions that leave

	mu      sync.Mutex
	table   table              // mu
	regions map[uint32]*region // mu
	used    [numKinds]uint64   // mu; requests with regions, by the owner's kind
	closed  bool               // mu
}

// region is what is kept of one besides the table's row.
type region struct {
	infer.Region
	key  string
	idle chan struct{} // closed when it leaves and nobody uses it
	done chan struct{} // closed when workers have let it go
}

// New makes a registry. An error: there is no folder for keys.
func New(cfg Config, deps Deps) (*Registry, error) {
	if cfg.MaxRegions == 0 {
		cfg.MaxRegions = DefaultMaxRegions
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.Folder == "" {
		cfg.Folder = "/dev/shm"
	}
	folder, err := os.Open(cfg.Folder)
	if err != nil {
		return nil, fmt.Errorf("shared memory of clients: %w", err)
	}
	return &Registry{cfg: cfg, workers: deps.Workers, log: deps.Log, local: deps.Local, folder: folder,
		shared: readSharedUID(), closing: make(chan struct{}), regions: map[uint32]*region{},
		table: newTable(limits{cfg.MaxRegions, cfg.MaxBytes}, infer.MaxRegions-infer.AnswerRegions)}, nil
}

// Spec is a region as a client registers it.
type Spec struct {
	Name   string
	Key    string   // what a file of the folder is called; "" with File
	File   *os.File // a descriptor that the client passed; Register owns it, also on an error
	Offset uint64   // of the range in the file
	Size   uint64

	CUDA *infer.CUDAHandle // device memory in place of a file
}

// maxName bounds the bytes of a region's name.
const maxName = 1024

// Register makes a region usable for its caller. It returns when workers have it.
// Errors: AlreadyExists, ResourceExhausted beyond the owner's share, InvalidArg, Internal
// for a key that can't be opened (the original's code), those of infer.Regions.
func (r *Registry) Register(ctx context.Context, env *infer.Envelope, s Spec) error {
	g := &region{key: s.Key, idle: make(chan struct{}), done: make(chan struct{})}
	g.File = s.File
	who, principal := r.user(env), principalOf(env)
	belongs := who.owner()
	if principal != "" {
		belongs = owner{kind: kindPrincipal, name: principal}
	}
	from, err := r.prepare(&s, g, who, principal)
	if err == nil {
		err = r.add(id{belongs, s.Name}, g, from)
	}
	if err != nil {
		return errors.Join(err, g.closeFile())
	}
	err = r.workers.OpenRegion(ctx, &g.Region)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed: // Close has given it up
		return errors.Join(err, errStopping())
	case err != nil: // no worker has it
		r.table.leave(g.Slot)
		r.forgetLocked(g)
		return errors.Join(err, g.closeFile())
	}
	r.table.opened(g.Slot)
	return nil
}

func (r *Registry) forgetLocked(g *region) {
	r.table.closed(g.Slot)
	delete(r.regions, g.Slot)
}

func errStopping() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the server is shutting down")
}

func (r *Registry) add(who id, g *region, from source) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errStopping()
	}
	if g.Slot, err = r.table.add(who, memory{g.CUDA != nil, g.Size, from}); err == nil {
		r.regions[g.Slot] = g
	}
	return err
}

// prepare checks a registration, opens its file, and finds out what memory it is of.
func (r *Registry) prepare(s *Spec, g *region, who user, principal string) (from source, err error) {
	switch {
	case s.Name == "":
		return from, infer.Errorf(infer.InvalidArg, "'region name' is necessary to register %s shared memory region",
			kindName(s.CUDA != nil))
	case len(s.Name) > maxName || !utf8.ValidString(s.Name):
		return from, infer.Errorf(infer.InvalidArg, "the name of a shared memory region is text of at most %d bytes",
			maxName)
	}
	g.Name, g.CUDA = s.Name, s.CUDA
	if s.Size == 0 || s.Size > uint64(infer.MaxRegionSize) || s.Offset > uint64(1<<62) {
		return from, errArgs(s.Name)
	}
	g.Offset, g.Size = int64(s.Offset), int64(s.Size)
	if s.CUDA != nil {
		return source{cuda: *s.CUDA}, nil
	}
	return r.openFile(s, g, who, principal)
}

// openFile opens a region's file, where it was not passed, and checks what is open.
func (r *Registry) openFile(s *Spec, g *region, who user, principal string) (from source, err error) {
	refused := infer.Errorf(infer.InvalidArg,
		"shared memory region '%s': the descriptor is not of memory that may be read and written (memfd_create, shm_open)",
		s.Name)
	reserved := false
	if g.File == nil {
		name, err := r.nameOf(s.Key, principal)
		if err != nil {
			return from, err
		}
		reserved = len(r.cfg.Prefixes) > 0
		if refused = errOpen(s.Key); !who.known && !reserved {
			refused = errOpenUnknown(s.Key)
		}
		if g.File, err = r.open(name); err != nil {
			return from, refused
		}
	}
	f, err := statFile(g.File)
	switch {
	case err != nil, !f.memory, !mayUse(who, &f, reserved):
		return from, refused
	case g.Offset+g.Size > f.size:
		return from, errArgs(s.Name)
	}
	return f.source, nil
}

func (g *region) closeFile() error {
	if g.File == nil {
		return nil
	}
	return g.File.Close()
}

func kindName(cuda bool) string {
	if cuda {
		return "cuda"
	}
	return "system"
}

// leaveLocked takes a region's name away, and gives it up once nobody uses it. ctx is
// for the workers' sake alone and has no end.
func (r *Registry) leaveLocked(ctx context.Context, g *region) {
	if r.table.leave(g.Slot) {
		close(g.idle)
	}
	r.leaving.Go(func() { r.giveUp(ctx, g) })
}

// closeTime is how long workers may take to let go of a region. They do so later too.
const closeTime = 10 * time.Second

// giveUp waits until nobody uses a region and makes the workers forget it. Its slot is
// not given again before.
func (r *Registry) giveUp(ctx context.Context, g *region) {
	defer close(g.done)
	select {
	case <-g.idle:
	case <-r.closing:
	}
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	if err := errors.Join(r.workers.CloseRegion(ctx, g.Slot), g.closeFile()); err != nil {
		r.log.Error("giving up a shared memory region", "region", g.Name, "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-g.idle:
		r.forgetLocked(g)
	default: // only at the end: requests may still name it
	}
}

// unregisterTime is how long Unregister waits where the call has no deadline.
const unregisterTime = 30 * time.Second

// Unregister takes the caller's region away: its name at once, and it returns when no
// request uses it any more and the workers have let it go. A region that is not there, or
// is of the other kind, is none: nil, as in the original. Unavailable: it is still in
// use; it goes as soon as it is not.
func (r *Registry) Unregister(ctx context.Context, env *infer.Envelope, cuda bool, name string) error {
	owner := r.owner(env)
	r.mu.Lock()
	slot, row := r.table.find(id{owner, name})
	if slot == 0 || row.cuda != cuda {
		r.mu.Unlock()
		return nil
	}
	g := r.regions[slot]
	r.leaveLocked(context.WithoutCancel(ctx), g)
	r.mu.Unlock()
	return awaitGone(ctx, g)
}

// UnregisterAll is Unregister of all regions of one kind that the caller has.
func (r *Registry) UnregisterAll(ctx context.Context, env *infer.Envelope, cuda bool) error {
	owner := r.owner(env)
	var all []*region
	r.mu.Lock()
	for slot, row := range r.table.rows {
		if row.owner == owner && row.cuda == cuda && row.state == open {
			all = append(all, r.regions[slot])
		}
	}
	for _, g := range all {
		r.leaveLocked(context.WithoutCancel(ctx), g)
	}
	r.mu.Unlock()
	return awaitGone(ctx, all...)
}

func awaitGone(ctx context.Context, all ...*region) error {
	ctx, cancel := context.WithTimeout(ctx, unregisterTime)
	defer cancel()
	for _, g := range all {
		select {
		case <-g.done:
		case <-ctx.Done():
			return infer.Errorf(infer.Unavailable, "shared memory region '%s' is unregistered, and requests still use its memory", g.Name)
		}
	}
	return nil
}

// Status is one region as its owner sees it.
type Status struct {
	Name   string
	Key    string // "": a descriptor was passed
	Offset int64
	Size   int64
	Device int // of CUDA regions
}

// Status lists the caller's regions of one kind, or the one that is named. NotFound has
// the original's words.
func (r *Registry) Status(env *infer.Envelope, cuda bool, name string) ([]Status, error) {
	owner := r.owner(env)
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Status
	if name != "" {
		slot, row := r.table.find(id{owner, name})
		switch {
		case slot == 0:
			return nil, infer.Errorf(infer.NotFound, "Unable to find %s shared memory region: '%s'", kindName(cuda), name)
		case row.cuda != cuda:
			return nil, errKind(name, row.cuda)
		}
		return append(all, r.regions[slot].status()), nil
	}
	for slot, row := range r.table.rows {
		if row.owner == owner && row.cuda == cuda && row.state == open {
			all = append(all, r.regions[slot].status())
		}
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func errKind(name string, cuda bool) error {
	is, not := "system", "CUDA"
	if cuda {
		is, not = not, is
	}
	return infer.Errorf(infer.NotFound, "The region named '%s' is registered as %s shared memory, not %s shared memory", name, is, not)
}

func (g *region) status() Status {
	s := Status{Name: g.Name, Key: g.key, Offset: g.Offset, Size: g.Size}
	if g.CUDA != nil {
		s.Device = g.CUDA.Device
	}
	return s
}

// Close ends the registry, when no request comes any more and before the workers end:
// all regions are given up. It returns when they are, or ctx's error.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	for slot, row := range r.table.rows {
		if row.state != leaving {
			r.leaveLocked(context.WithoutCancel(ctx), r.regions[slot])
		}
	}
	r.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		r.leaving.Wait()
		close(gone)
	}()
	var err error
	select {
	case <-gone:
	case <-ctx.Done():
		err = fmt.Errorf("regions of shared memory are still in use: %w", ctx.Err())
		close(r.closing)
		<-gone
	}
	return errors.Join(err, r.folder.Close())
}

// Figures are what metrics tell of one kind of owners.
type Figures struct {
	Owner    string // "principal", "user", "loopback" or "remote"
	Regions  int
	Bytes    int64
	Requests uint64 // with regions, since the start
}

// Figures tells of every kind.
func (r *Registry) Figures() []Figures {
	all := make([]Figures, numKinds)
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range all {
		all[k].Owner, all[k].Requests = kinds[k], r.used[k]
	}
	for owner, u := range r.table.use {
		f := &all[owner.kind]
		f.Regions += u.regions
		f.Bytes += u.bytes
	}
	return all
}

// InUse counts references of requests to regions.
func (r *Registry) InUse() (refs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range r.table.rows {
		refs += row.refs
	}
	return refs
}
