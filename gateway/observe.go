package gateway

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/gateway/accesslog"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/gateway/pipeline"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/stats"
	"github.com/sluice-serve/sluice/infer"
)

// ObserveConfig is what is told of each call besides metrics and traces.
type ObserveConfig struct {
	AccessLog accesslog.Config // --access-log, --access-log-config
	Reopen    <-chan os.Signal // SIGHUP, for the access log; cmd's
	ReopenLog <-chan os.Signal // SIGHUP, for the log; cmd's
	Timings   pipeline.Timings // --response-timings
	// Principals bounds the callers that have metrics of their own; 0: none do.
	Principals int
}

// observer sees calls end.
type observer struct {
	log         *accesslog.Log // nil: none
	calls       *stats.Calls
	connections struct{ http, grpc listen.Count }
}

// openObserver opens the access log and makes the metrics of the server as a whole.
func (g *Gateway) openObserver() (err error) {
	c := &g.cfg.Observe
	if g.observer.log, err = accesslog.Open(c.AccessLog, accesslog.Deps{Reopen: c.Reopen, Log: g.logger}); err != nil {
		return err
	}
	g.observer.calls = g.stats.Calls(accesslog.Outcomes(), c.Principals)
	g.stats.Add(g.serverFigures)
	g.stats.Add(g.instanceFigures)
	g.stats.Add(certificateFigures(g.certificates()))
	return nil
}

// ended sees the end of every call.
func (g *Gateway) ended(env *infer.Envelope, end *infer.End) {
	g.observer.calls.Ended(env, end, accesslog.Outcome(env, end))
	g.observer.log.Add(env, end)
}

// serverFigures are connections, calls in flight and the access log's own.
func (g *Gateway) serverFigures(gauge, counter func(name, help string, v float64, labels ...string)) {
	for protocol, c := range map[string]*listen.Count{"http": &g.observer.connections.http, "grpc": &g.observer.connections.grpc} {
		gauge("sluice_connections", "Open connections of clients.", float64(c.Open.Load()), "protocol", protocol)
		counter("sluice_connections_accepted_total", "Connections of clients that were accepted.", float64(c.Accepted.Load()), "protocol", protocol)
		gauge("sluice_requests_in_flight", "Calls that were opened and have no answer yet.", float64(g.pipeline.InFlight(protocol)), "protocol", protocol)
	}
	gauge("sluice_body_memory_bytes", "Memory of request bodies that is out.", float64(g.bodies.InUse()))
	gauge("sluice_response_memory_bytes", "Heap memory that responses hold until they are written.", float64(g.responses.Used()))
	gauge("sluice_request_arena_used_bytes", "Bytes of the request arena that are in use.", float64(g.workers.Memory().InUse()))
	ready := 0.0
	if g.control.Ready() {
		ready = 1
	}
	gauge("sluice_ready", "Whether the server answers that it is ready.", ready)
	for level, f := range g.log.Figures() {
		name := logging.Level(level).String()
		const lost = "Lines of the server's log that are not in it: for the bound of lines a second, " +
			"or since they could not be written."
		counter("sluice_log_lines_total", "Lines of the server's log.", float64(f.Written), "level", name)
		counter("sluice_log_lost_total", lost, float64(f.LeftOut), "level", name, "why", "rate")
		counter("sluice_log_lost_total", lost, float64(f.Failed), "level", name, "why", "write")
	}
	if g.observer.log == nil {
		return
	}
	f := g.observer.log.Figures()
	counter("sluice_access_log_lines_total", "Lines written to the access log.", float64(f.Written))
	counter("sluice_access_log_lost_total", "Lines of the access log that were lost for want of room, or of a disk that takes them.", float64(f.Lost))
}

// instanceFigures are the instances of each version and how many have a batch.
func (g *Gateway) instanceFigures(gauge, _ func(name, help string, v float64, labels ...string)) {
	seen := map[[2]string]bool{}
	g.models.Each(func(m *repository.Model) {
		key := [2]string{m.Name, m.VersionText()}
		all, up := m.Instances()
		if seen[key] || all == 0 {
			return // an ensemble, or the same name in another namespace
		}
		seen[key] = true
		gauge("sluice_instances", "Instances of a model version.", float64(all), "model", key[0], "version", key[1])
		gauge("sluice_instances_up", "Instances whose worker serves.", float64(up), "model", key[0], "version", key[1])
		gauge("sluice_instances_busy", "Instances that have a batch.", float64(m.Going().Busy), "model", key[0], "version", key[1])
	})
}

// certificates are the files of the certificates that the gateway shows, by their use.
func (g *Gateway) certificates() map[string]string {
	files := map[string]string{}
	for use, file := range map[string]string{"http": g.cfg.HTTP.TLS.Cert, "grpc": g.cfg.GRPC.TLS.Cert, "worker": g.cfg.Workers.TLS.Cert,
		"sagemaker": g.cfg.SageMaker.TLS.Cert, "vertex-ai": g.cfg.Vertex.TLS.Cert} {
		if file != "" {
			files[use] = file
		}
	}
	return files
}

// certificateFigures says until when the certificates of files, by their use, are
// valid; 0 for one that can't be read. A file is read again when it has changed, as the
// front ends do.
func certificateFigures(files map[string]string) stats.Source {
	type seen struct {
		changed time.Time
		until   float64
	}
	var mu sync.Mutex
	known := map[string]seen{}
	return func(gauge, _ func(name, help string, v float64, labels ...string)) {
		mu.Lock()
		defer mu.Unlock()
		for use, file := range files {
			info, err := os.Stat(file)
			s := known[use]
			if err != nil {
				s = seen{}
			} else if !info.ModTime().Equal(s.changed) {
				s.changed, s.until = info.ModTime(), 0
				if at, err := notAfter(file); err == nil {
					s.until = float64(at.Unix())
				}
			}
			known[use] = s
			gauge("sluice_certificate_not_after_timestamp_seconds", "Until when a certificate that the gateway shows is valid; 0: its file can't be read.",
				s.until, "use", use)
		}
	}
}

// notAfter is the end of the first certificate in a PEM file.
func notAfter(file string) (time.Time, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return time.Time{}, errors.New("no certificate in " + file)
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, err
		}
		return c.NotAfter, nil
	}
}

// whose are the attributes of a log line that say whose request it was, and where its
// trace is.
func whose(req *infer.Request) (attrs []any) {
	if s := req.SpanContext(); s.Trace != (infer.TraceID{}) {
		attrs = append(attrs, "trace", s.Trace.String())
	}
	if env := req.Envelope; env != nil && env.Principal != nil && env.Principal.Name != "" {
		attrs = append(attrs, "principal", env.Principal.Name)
	}
	return attrs
}
