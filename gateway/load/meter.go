package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"

	"github.com/sluice-serve/sluice/internal/tick"
)

// Config says how often a Meter looks. Zero fields take the default.
type Config struct {
	Interval time.Duration // between two looks while somebody asks; default 20 ms
	Idle     time.Duration // while nobody does; default 1 s
	Started  time.Time     // when the gateway started
}

// Deps are a Meter's collaborators.
type Deps struct {
	// Models appends what there is. It is called by one goroutine at a time.
	Models func(to []Model) []Model
	// Machine is asked once a second, while nobody asks for reports every ten; nil: not known.
	Machine func() Machine
	Ready   func() bool // nil: no
}

// machineEvery and machineIdle are the times between two questions to Deps.Machine.
const (
	machineEvery = time.Second
	machineIdle  = 10 * time.Second
)

// patience is how many looks without a question it takes to become idle.
const patience = 250

// Meter has the newest Report. New makes it, Run keeps it new.
type Meter struct {
	cfg    Config
	deps   Deps
	report atomic.Pointer[Report]
	asked  atomic.Bool
	idle   atomic.Bool
	wake   chan struct{}

	begun time.Time

	mu      sync.Mutex
	sampler sampler
	models  []Model
	machine Machine
	beat    time.Time              // when machine was asked
	full    *orcav3.OrcaLoadReport // of this look; nil: nobody asked yet
}

// New makes a Meter whose report says nothing of models yet.
func New(cfg Config, deps Deps) *Meter {
	if cfg.Interval <= 0 {
		cfg.Interval = 20 * time.Millisecond
	}
	if cfg.Idle <= 0 {
		cfg.Idle = time.Second
	}
	m := &Meter{cfg: cfg, deps: deps, wake: make(chan struct{}, 1), machine: Machine{CPU: -1, Memory: -1}, begun: time.Now()}
	m.report.Store(m.sampler.report(m.lifeLocked()))
	return m
}

func (m *Meter) lifeLocked() life {
	return life{started: float64(m.cfg.Started.UnixMilli()) / 1e3, ready: m.deps.Ready != nil && m.deps.Ready(), machine: m.machine}
}

// Report is the newest report: at most an interval old, or once after a time in which
// nobody asked, as old as Idle. It never waits and never allocates.
func (m *Meter) Report() *Report {
	if !m.asked.Load() {
		m.asked.Store(true)
		if m.idle.Load() {
			select {
			case m.wake <- struct{}{}:
			default:
			}
		}
	}
	return m.report.Load()
}

// Full is the newest report with all model versions in it. It is only to be read.
func (m *Meter) Full() *orcav3.OrcaLoadReport {
	m.Report() // somebody asks
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full == nil {
		m.full = m.sampler.full(m.lifeLocked())
	}
	return m.full
}

// Run looks until ctx ends.
func (m *Meter) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	idle := tick.New(m.cfg.Idle)
	defer idle.Stop()
	quiet := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-idle.C:
		case <-m.wake:
		}
		quiet++
		if m.asked.Swap(false) {
			quiet = 0
		}
		m.idle.Store(quiet > patience)
		m.look()
		if quiet > patience {
			idle.Next()
		} else {
			timer.Reset(m.cfg.Interval)
		}
	}
}

// look makes the next report.
func (m *Meter) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	every := machineEvery
	if m.idle.Load() {
		every = machineIdle
	}
	if m.deps.Machine != nil && now.Sub(m.beat) >= every {
		m.beat, m.machine = now, m.deps.Machine()
	}
	m.models = m.deps.Models(m.models[:0])
	m.sampler.look(now.Sub(m.begun)+1, m.models)
	m.full = nil
	m.report.Store(m.sampler.report(m.lifeLocked()))
}
