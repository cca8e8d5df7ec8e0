package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/gateway/admission"
	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/calls"
	"github.com/sluice-serve/sluice/gateway/control"
	"github.com/sluice-serve/sluice/gateway/grpcapi"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/load"
	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/memory"
	"github.com/sluice-serve/sluice/gateway/pipeline"
	"github.com/sluice-serve/sluice/gateway/placements"
	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/repository/agent"
	"github.com/sluice-serve/sluice/gateway/repository/cloud"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/stats"
	"github.com/sluice-serve/sluice/gateway/vertex"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/tick"
	"github.com/sluice-serve/sluice/tracing"
	"github.com/sluice-serve/sluice/tracing/otlp"
	"github.com/sluice-serve/sluice/workers/client"
	"github.com/sluice-serve/sluice/xds/plane"
)

// Gateway is one gateway. New makes it, Run serves and frees it.
type Gateway struct {
	cfg      Config
	log      *logging.Log
	logger   *slog.Logger
	alarm    *schedule.Alarm
	workers  *client.Workers
	stats    *stats.Registry
	store    *cloud.Store
	models   *repository.Repository
	control  *control.Server
	calls    *calls.Calls
	pipeline *pipeline.Pipeline
	observer observer
	cache    *cache.Step // nil: off
	tracer   *tracing.Tracer
	spans    *otlp.Exporter // nil: traces are no spans
	bodies   *memory.Bodies
	// responses counts what they hold on the heap.
	responses *infer.Budget
	batches   atomic.Uint64
	limiter   *ratelimit.Limiter // nil: off
	auth      *auth.Auth
	limits    *admission.Limits // nil: off
	regions   *regions.Registry // nil: no shared memory of clients

	http *httpapi.Server // nil: off
	grpc *grpcapi.Server // nil: off
	load load.Answers
	// placements are the sequences that pickers of a mesh have placed here.
	placements placements.Registry
	metrics    []net.Listener // TCP first; none: off
	// secured are the certificates of all front ends that speak TLS.
	secured []*listen.Certificates
	xds     *plane.Plane // nil: off

	platforms []platform
	vertex    *vertex.Server // nil: off

	xdsPort int

	files *listen.Descriptors // keeps some back from the connections of all front ends
	loops []*loop.Loop        // none: connections and workers have goroutines of their own
}

// New starts the workers, joins all parts and opens the listeners, so that a port
// that is taken fails at once; no model is loaded yet. Who gets a Gateway calls Run.
func New(ctx context.Context, cfg Config) (*Gateway, error) {
	g := &Gateway{cfg: cfg}
	if err := g.build(ctx); err != nil {
		ctx := context.WithoutCancel(ctx)
		return nil, errors.Join(err, g.closeListeners(ctx), g.close(ctx))
	}
	return g, nil
}

// Log is what the gateway logs with.
func (g *Gateway) Log() *slog.Logger { return g.logger }

func (g *Gateway) build(ctx context.Context) (err error) {
	if g.log, err = logging.Open(g.cfg.Log); err != nil {
		return err
	}
	g.logger = g.log.Logger()
	g.responses = &infer.Budget{Limit: g.cfg.ResponseLimit}
	if g.alarm, err = schedule.NewAlarm(); err != nil {
		return err
	}
	conf, err := workersConfig(&g.cfg)
	if err != nil {
		return err
	}
	if err := g.openLoops(&conf); err != nil {
		return err
	}
	g.openCalls()
	g.workers, err = client.Start(ctx, conf, client.Deps{Log: g.logger, Responses: g.responses, Calls: g.calls})
	if err != nil {
		return err
	}
	g.limiter = g.cfg.RateLimit.limiter()
	m := &g.cfg.Metrics
	measured := stats.Deps{Models: g.calls}
	if err := g.openCache(ctx); err != nil {
		return err
	}
	if g.cache != nil {
		measured.Caches = g.cache.Figures
	}
	g.stats = stats.New(stats.Config{CounterLatencies: m.Counters, SummaryLatencies: m.Summaries,
		HistogramLatencies: m.Histograms, Quantiles: m.Quantiles, CPU: m.CPU, GPU: m.GPU, Version: g.cfg.Version}, measured)
	r := &g.cfg.Repository
	g.store = newStore(&g.cfg, g.logger)
	repo := r.models()
	repo.WorkerWait = g.cfg.Workers.Wait
	repo.Cache = g.cfg.Cache.repository()
	g.models = repository.New(repo,
		repository.Deps{Forget: g.forget, Workers: repositoryWorkers{g.workers}, NewStats: g.newStats, NewScheduler: g.newScheduler, GPUMemory: g.gpuMemory,
			Agents: agents{agent.New(r.Agents, g.logger)}, Stores: g.store,
			Changed: g.stateChanged, Log: g.logger})
	if err := g.openTracing(); err != nil {
		return err
	}
	g.control = control.New(g.cfg.ID, g.cfg.Version, control.Deps{Models: g.models, Log: g.log, Tracer: g.tracer, Cache: g.purger()})
	if err := g.openLimits(ctx); err != nil {
		return err
	}
	if err := g.openAuth(); err != nil {
		return err
	}
	if err := g.openRegions(); err != nil {
		return err
	}
	g.pipeline = g.newPipeline()
	g.bodies = &memory.Bodies{Arena: g.workers.Memory(), ArenaSize: g.workers.Memory().Size(), Limit: g.cfg.BodyLimit,
		Answers: func() bool { return g.responses.Scarce() || g.workers.Scarce() }}
	g.openLoad()
	if err := g.openObserver(); err != nil {
		return err
	}
	if err := g.listen(ctx); err != nil {
		return err
	}
	return g.openXDS(ctx)
}

func (g *Gateway) newStats(m *repository.Model) repository.Stats {
	tags := m.Config.GetMetricTags()
	if ns := m.Namespace(); ns != "" { // else models of one name would share their figures
		tags = maps.Clone(tags)
		if tags == nil {
			tags = map[string]string{}
		}
		tags["namespace"] = ns
	}
	s := g.stats.Model(m.Name, m.Version, tags, m.Batched())
	if m.Current() != nil {
		s.Cached()
	}
	return s
}

// stateChanged follows what is ready, and what serves.
func (g *Gateway) stateChanged() { g.control.Changed() }

func (g *Gateway) newScheduler(m *repository.Model, instances []infer.Executor) (schedule.Scheduler, error) {
	return g.schedule(m, schedule.Deps{Executors: instances, Memory: g.layout(m),
		Observer: m.Stats(), Clock: g.alarm, IDs: &g.batches, Log: g.logger,
		Steps: steps{g.models, g.pipeline, g.workers, m.Namespace()}, States: m.States(), Sequences: g.sequenceRules(),
		WorkerWait: m.WorkerWait(), Changed: g.stateChanged})
}

// Run loads the models, serves until ctx ends or a listener fails, and then stops:
// not ready, a grace, no new connections, drain, schedulers, workers. It returns nil
// when all requests were answered in time.
func (g *Gateway) Run(ctx context.Context) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	telling, stopTelling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopTelling()
	failed := make(chan error, 8) // room for all that may fail: nobody reads after the first
	var running, tellers sync.WaitGroup
	g.tell(telling, &tellers, failed)
	g.serve(serving, &running, failed)

	err := g.start(ctx)
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	err = errors.Join(err, g.drain(context.WithoutCancel(ctx)))
	stopServing()
	running.Wait()
	stopTelling() // last of all, since what ended late has a line and spans too
	tellers.Wait()
	return errors.Join(err, g.close(context.WithoutCancel(ctx)))
}

// serve starts what serves; it runs until serving ends or Shutdown, and running waits
// for it.
func (g *Gateway) serve(serving context.Context, running *sync.WaitGroup, failed chan<- error) {
	run := func(name string, f func() error) { runs(running, failed, name, f) }
	if g.http != nil {
		run("HTTP", func() error { return g.http.Serve(serving) })
	}
	if g.grpc != nil {
		run("gRPC", g.grpc.Serve)
	}
	for _, l := range g.metrics {
		run("metrics", func() error { return g.stats.Serve(serving, l, g.guarded) })
	}
	for _, p := range g.platforms {
		run(p.name, func() error { return p.server.Serve(serving) })
	}
	if g.xds != nil {
		run("control plane", func() error { return g.xds.Run(serving) })
	}
	run("identity", func() error { return g.auth.Run(serving) })
	running.Go(func() { g.watchWorkers(serving) })
	running.Go(func() { g.watchCertificates(serving) })
	running.Go(func() { g.giveBack(serving) })
	running.Go(func() { g.models.Run(serving) })
	if g.limits != nil {
		running.Go(func() { g.limits.Run(serving) })
	}
	running.Go(func() { g.runLoad(serving) })
}

// tell starts what tells of calls that ended; it runs until telling ends.
func (g *Gateway) tell(telling context.Context, tellers *sync.WaitGroup, failed chan<- error) {
	runs(tellers, failed, "log", func() error { return g.log.Run(telling, g.cfg.Observe.ReopenLog) })
	runs(tellers, failed, "tracing", func() error { return g.runTracing(telling) })
	runs(tellers, failed, "access log", func() error { return g.observer.log.Run(telling) })
}

// runs runs f on a goroutine of its own, which group waits for.
func runs(group *sync.WaitGroup, failed chan<- error, name string, f func() error) {
	group.Go(func() {
		if err := f(); err != nil {
			failed <- fmt.Errorf("%s: %w", name, err)
		}
	})
}

// start loads all models and says how it went. It fails when a model did not load and
// the configuration wants that to end the server. When ctx ended meanwhile it leaves the
// server not ready.
func (g *Gateway) start(ctx context.Context) error {
	loadErr := g.models.LoadAll(ctx)
	if err := g.tables(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		g.logger.Info("stopped while models were loading")
		return nil
	}
	if loadErr != nil {
		if g.cfg.Repository.ExitOnError {
			return fmt.Errorf("creating server: failed to load all models (--exit-on-error=false serves the others): %w", loadErr)
		}
		g.logger.Error("not all models could be loaded; the others are served")
	}
	if err := g.startPlatforms(); err != nil {
		return err
	}
	g.control.Serving()
	g.announce()
	if g.cfg.PortFile != "" {
		return g.ports().write(g.cfg.PortFile)
	}
	return nil
}

func (g *Gateway) announce() {
	p := g.ports()
	for _, s := range []struct {
		name string
		at   *Listen
		port int
	}{{"HTTPService", &g.cfg.HTTP.Listen, p.HTTP}, {"GRPCInferenceService", &g.cfg.GRPC.Listen, p.GRPC},
		{"Metrics Service", &g.cfg.Metrics.Listen, p.Metrics}, {"Sagemaker HTTPService", &g.cfg.SageMaker.Listen, p.SageMaker},
		{"Vertex AI HTTPService", &g.cfg.Vertex.Listen, p.Vertex}} {
		if s.port != 0 {
			g.logger.Info("Started " + s.name + " at " + net.JoinHostPort(s.at.Address, strconv.Itoa(s.port)))
		}
		if s.at.Allow && s.at.Unix != "" {
			g.logger.Info("Started " + s.name + " at unix:" + s.at.Unix)
		}
	}
}

// tables prints the start-up tables.
func (g *Gateway) tables() error {
	var workers, backends, models [][]string
	for _, s := range g.workers.States() {
		state := "up"
		if !s.Up {
			state = "down"
		}
		workers = append(workers, []string{s.Worker, strconv.FormatInt(s.PID, 10), state})
	}
	for _, b := range g.workers.Backends() {
		status := "ok"
		if b.Unavailable != "" {
			status = b.Unavailable
		}
		backends = append(backends, []string{b.Name, b.Version, b.Worker, status})
	}
	for _, m := range g.models.Table() {
		models = append(models, []string{m.Name, m.Version, m.State})
	}
	return errors.Join(
		g.log.Print(render([]string{"Worker", "PID", "Status"}, workers)),
		g.log.Print(render([]string{"Backend", "Version", "Worker", "Status"}, backends)),
		g.log.Print(render([]string{"Model", "Version", "Status"}, models)),
		g.log.Print(render([]string{"Option", "Value"}, g.cfg.options())+"\n"))
}

// drain turns requests away and waits for those in flight, up to the exit timeout; the
// others are then answered with an error, which the log tells of.
func (g *Gateway) drain(ctx context.Context) error {
	serving := g.control.Ready()
	g.control.Stopping()
	if serving && g.cfg.ExitGrace > 0 {
		g.logger.Info("not ready; connections are taken for a grace", "grace", g.cfg.ExitGrace)
		pause, cancel := context.WithTimeout(ctx, g.cfg.ExitGrace)
		<-pause.Done()
		cancel()
	}
	g.logger.Info("Waiting for in-flight requests to complete.", "timeout", g.cfg.ExitTimeout)
	begin := time.Now()
	late, cancel := context.WithTimeout(ctx, g.cfg.ExitTimeout)
	defer cancel()
	failed := make(chan error, 1)
	stop := context.AfterFunc(late, func() {
		// what waits or runs now is answered with an error, while it can be sent
		g.pipeline.Stop()
		failed <- g.models.Close(late)
	})
	last, cancelLast := context.WithTimeout(ctx, g.cfg.ExitTimeout+lastWords)
	defer cancelLast()
	err := g.shutdown(last)
	g.pipeline.Stop()
	if !stop() {
		err = errors.Join(err, <-failed)
		g.logger.Error("requests in flight were cut off", "after", time.Since(begin), "error", err)
		return nil
	}
	return err
}

// lastWords is the time that answers to requests which were cut off have to be sent.
const lastWords = time.Second

// shutdown ends the front ends, whose calls in flight have until ctx ends.
func (g *Gateway) shutdown(ctx context.Context) error {
	errs := make([]error, 2+len(g.platforms))
	var wg sync.WaitGroup
	for i, p := range g.platforms {
		wg.Go(func() { errs[2+i] = p.server.Shutdown(ctx) })
	}
	if g.http != nil {
		wg.Go(func() { errs[0] = g.http.Shutdown(ctx) })
	}
	if g.grpc != nil {
		wg.Go(func() { errs[1] = g.grpc.Shutdown(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// closeListeners closes what was never served.
func (g *Gateway) closeListeners(ctx context.Context) error {
	err := g.shutdown(ctx)
	for _, l := range g.metrics {
		err = errors.Join(err, l.Close())
	}
	return err
}

// unloadTime is what unloading and ending the workers may take after the drain.
const unloadTime = 10 * time.Second

// close frees what build made, as far as it got.
func (g *Gateway) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, unloadTime)
	defer cancel()
	var errs []error
	if g.models != nil {
		errs = append(errs, g.models.Close(ctx))
	}
	if g.store != nil {
		errs = append(errs, g.store.Close(ctx))
	}
	if g.regions != nil {
		errs = append(errs, g.regions.Close(ctx))
	}
	if g.workers != nil {
		errs = append(errs, g.workers.Close(ctx))
	}
	for _, l := range g.loops {
		errs = append(errs, l.Close())
	}
	if g.cache != nil {
		errs = append(errs, g.cache.Close(ctx))
	}
	if g.limits != nil {
		errs = append(errs, g.limits.Stop(ctx))
	}
	if g.alarm != nil {
		errs = append(errs, g.alarm.Close())
	}
	if g.log != nil {
		errs = append(errs, g.log.Close())
	}
	return errors.Join(errs...)
}

// watchWorkers carries the workers' reports to the metrics until ctx ends.
func (g *Gateway) watchWorkers(ctx context.Context) {
	look := tick.New(g.cfg.Metrics.Interval)
	defer look.Stop()
	restarts := map[string]int{}
	known := map[string]bool{}
	for {
		clear(known)
		for _, s := range g.workers.States() {
			known[s.Worker] = true
			w := g.stats.Worker(s.Worker)
			w.SetUp(s.Up)
			for n := restarts[s.Worker]; n < s.Restarts; n++ {
				w.Restarted()
			}
			restarts[s.Worker] = s.Restarts
			if s.Report != nil {
				w.Report(s.Report)
			}
		}
		for name := range restarts { // processes that ended with their models
			if !known[name] {
				g.stats.RemoveWorker(g.stats.Worker(name))
				delete(restarts, name)
			}
		}
		select {
		case <-look.C:
			look.Next()
		case <-ctx.Done():
			return
		}
	}
}
