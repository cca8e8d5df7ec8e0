package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc/codes"

	"github.com/sluice-serve/sluice/gateway/accesslog"
	"github.com/sluice-serve/sluice/gateway/grpcapi"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/infer"
)

func (l *Listen) config() listen.Config {
	return listen.Config{Address: l.Address, Port: l.Port, ReusePort: l.Reuse, UnixSocket: l.Unix}
}

// listen opens the listeners of all protocols that are on.
func (g *Gateway) listen(ctx context.Context) (err error) {
	g.files = listen.NewDescriptors(g.logger)
	if g.cfg.HTTP.Allow {
		if g.http, err = g.newHTTP(ctx); err != nil {
			return err
		}
	}
	if g.cfg.GRPC.Allow {
		if g.grpc, err = g.newGRPC(ctx); err != nil {
			return err
		}
	}
	if m := &g.cfg.Metrics; m.Allow {
		sockets := m.config()
		sockets.Descriptors = g.files
		if g.metrics, err = listen.Open(ctx, sockets); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return g.openPlatforms(ctx)
}

// apiDeps are what each front end that speaks HTTP works with; its answers are counted
// under its name.
func (g *Gateway) apiDeps(name string) httpapi.APIDeps {
	return httpapi.APIDeps{Load: g.load.Header, Pipeline: g.pipeline, Control: g.control, Bodies: g.bodies,
		Responses: g.responses, Regions: g.regions, Failed: g.logFailure,
		Answered: g.stats.Front(name, statuses()).Answered}
}

func (g *Gateway) newHTTP(ctx context.Context) (*httpapi.Server, error) {
	c := &g.cfg.HTTP
	api, err := httpapi.NewAPI(httpapi.APIConfig{Limits: httpapi.Limits{MaxJSON: c.MaxInputSize}, HeaderForward: c.Forward},
		g.apiDeps("http"))
	if err != nil {
		return nil, err
	}
	sockets := c.config()
	sockets.Count, sockets.Descriptors = &g.observer.connections.http, g.files
	secure, err := g.secure("http", c.TLS, "h2", "http/1.1")
	if err != nil {
		return nil, err
	}
	conf := httpapi.Config{Config: sockets, Secure: secure, Transport: httpapi.Transport(c.Transport), Loops: g.loops}
	s := httpapi.NewServer(conf, api, g.logger)
	return s, s.Listen(ctx)
}

func (g *Gateway) newGRPC(ctx context.Context) (*grpcapi.Server, error) {
	c := &g.cfg.GRPC
	conf := grpcapi.DefaultConfig()
	conf.Config = c.config()
	conf.Count, conf.Loops, conf.Descriptors = &g.observer.connections.grpc, g.loops, g.files
	conf.Forward, conf.StandardCodec = c.Forward, c.StandardCodec
	secure, err := g.secure("grpc", c.TLS, "h2")
	if err != nil {
		return nil, err
	}
	conf.Secure, conf.Log = secure, g.logger
	conf.Transport = grpcapi.Transport(c.Transport)
	conf.Compression = c.Compression
	conf.MaxMessage = min(math.MaxInt32, g.cfg.BodyLimit)
	if conf.Transport == grpcapi.TransportOwn { // which receives messages into that memory
		conf.MaxMessage = min(conf.MaxMessage, g.bodies.Most())
	}
	conf.KeepaliveTime, conf.KeepaliveTimeout = c.KeepaliveTime, c.KeepaliveTimeout
	conf.PermitWithoutCalls, conf.MinPingInterval = c.PermitWithoutCalls, c.MinPingInterval
	conf.MaxPingStrikes, conf.MaxPingsWithoutData = c.MaxPingStrikes, c.MaxPingsWithoutData
	conf.MaxConnectionAge, conf.MaxConnectionAgeGrace = c.MaxConnectionAge, c.MaxConnectionAgeGrace
	names := map[int]string{}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		names[int(code)] = code.String()
	}
	answers := g.stats.Front("grpc", names)
	return grpcapi.NewServer(ctx, conf, grpcapi.Deps{Load: &g.load, Placements: &g.placements, Pipeline: g.pipeline, Control: g.control,
		Bodies: g.bodies, Responses: g.responses, Regions: g.regions,
		Failed: g.logFailure, Answered: func(code codes.Code) { answers.Answered(int(code)) }})
}

// logFailure logs a call that ended with an error: a fault of the server, a worker or a
// model as an error, what is the caller's fault or the load's as a verbose message.
func (g *Gateway) logFailure(ctx context.Context, method string, req *infer.Request, err error) {
	level := logging.LevelVerbose(1)
	if accesslog.ServerFault(err) {
		level = slog.LevelError
	}
	if !g.logger.Enabled(ctx, level) {
		return
	}
	attrs := []any{"method", method, "code", infer.CodeOf(err).String(), "error", err}
	if req != nil {
		attrs = append(attrs, "model", req.Model, "version", req.Version, "id", req.ID)
		attrs = append(attrs, whose(req)...)
	}
	var bug *infer.Bug
	if errors.As(err, &bug) {
		attrs = append(attrs, "panic", bug.Value, "stack", bug.Stack)
	}
	g.logger.Log(ctx, level, "request failed", attrs...)
}

// statuses are the HTTP statuses that are counted by their own number.
func statuses() map[int]string {
	names := map[int]string{}
	for code := 200; code < 600; code++ {
		if http.StatusText(code) != "" {
			names[code] = strconv.Itoa(code)
		}
	}
	return names
}

// ports are the ports really listened on; 0 where a protocol is off.
type ports struct {
	HTTP    int `json:"http"`
	GRPC    int `json:"grpc"`
	Metrics int `json:"metrics"`
	XDS     int `json:"xds,omitempty"`

	SageMaker int `json:"sagemaker,omitempty"`
	Vertex    int `json:"vertex_ai,omitempty"`
}

func (g *Gateway) ports() ports {
	p := ports{XDS: g.xdsPort}
	if g.http != nil {
		p.HTTP = portOf(g.http.Addrs()[0])
	}
	if g.grpc != nil {
		p.GRPC = portOf(g.grpc.Addr())
	}
	if len(g.metrics) > 0 {
		p.Metrics = portOf(g.metrics[0].Addr())
	}
	for _, f := range g.platforms {
		if port := portOf(f.server.Addrs()[0]); f.at == &g.cfg.SageMaker.Listen {
			p.SageMaker = port
		} else {
			p.Vertex = port
		}
	}
	return p
}

func portOf(a net.Addr) int {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}

// write puts the ports into a file that appears whole.
func (p ports) write(file string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".ports-*")
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	_, err = tmp.Write(append(data, '\n'))
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("port file: %w", err), os.Remove(tmp.Name()))
	}
	return nil
}
