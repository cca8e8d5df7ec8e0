package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/xds"
)

// maxAnswer bounds an answer of a gateway, in bytes.
const maxAnswer = 16 << 20

// remote asks a gateway over HTTP: its readiness, its repository index and, once for
// each model that appears, whether it has sequences. One that has no HTTP port is asked
// by its gRPC health service for its readiness alone.
type remote struct {
	base     string // "": no HTTP port
	client   *http.Client
	interval time.Duration
	timeout  time.Duration
	health   string                           // target of the gRPC health service; "": none
	creds    credentials.TransportCredentials // for health
	stateful map[string]bool                  // by model; only of those in the last index
	refused  map[string]bool                  // models whose configuration may not be read
	again    time.Time                        // when those are asked for once more
	token    string                           // "": none is shown
}

func newRemote(g *xds.Gateway, t *xds.Topology, secrets xds.Secrets, cfg *Config) (*remote, error) {
	r := &remote{base: "http://" + g.HTTP, interval: cfg.Interval, timeout: cfg.Timeout, stateful: map[string]bool{}, refused: map[string]bool{},
		health: g.GRPC, creds: insecure.NewCredentials(), token: t.Token(secrets)}
	transport := &http.Transport{MaxIdleConns: 2, IdleConnTimeout: time.Minute, DisableCompression: true}
	if path, ok := strings.CutPrefix(g.HTTP, "unix:"); ok {
		r.base = "http://gateway"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
	}
	if t.Upstream.TLS != nil {
		r.base = strings.Replace(r.base, "http:", "https:", 1)
		config, err := t.Upstream.TLS.Config(secrets)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig, r.creds = config, credentials.NewTLS(config.Clone())
	}
	if g.HTTP == "" {
		r.base = ""
	}
	r.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return r, nil
}

// Watch asks at every interval, and at once when the gateway's health service tells of
// a change: a gateway that stops leaves Envoy's endpoints before it refuses calls.
func (r *remote) Watch(ctx context.Context, report func(State)) {
	defer r.client.CloseIdleConnections()
	ctx, stop := context.WithCancel(ctx)
	news := make(chan struct{}, 1)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer stop()
	var services healthpb.HealthClient // nil: none
	if r.health != "" {
		conn, err := grpc.NewClient(r.health, grpc.WithTransportCredentials(r.creds), grpc.WithPerRPCCredentials(xds.Bearer(r.token)), grpc.WithDisableServiceConfig())
		if err == nil { // else the interval is left
			defer func() { _ = conn.Close() }() // nothing more can be done with it
			services = healthpb.NewHealthClient(conn)
			listening.Go(func() { r.listen(ctx, services, news) })
		}
	}
	tick := time.NewTicker(r.interval)
	defer tick.Stop()
	for {
		s := r.look(ctx, services)
		if ctx.Err() != nil {
			return
		}
		report(s)
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-tick.C:
		}
	}
}

// listen writes to news when the health service tells of a change, until ctx ends.
// A gateway without that service, or that can't be reached, is tried again at intervals.
func (r *remote) listen(ctx context.Context, client healthpb.HealthClient, news chan<- struct{}) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		for err == nil {
			if _, err = stream.Recv(); err == nil || ctx.Err() == nil {
				select {
				case news <- struct{}{}:
				default:
				}
			}
		}
		pause.Reset(max(r.interval, healthAgain))
	}
}

// healthAgain is when a health service that ended is asked again.
const healthAgain = time.Second

// look asks by HTTP where there is a port for it, else by the health service.
func (r *remote) look(ctx context.Context, services healthpb.HealthClient) State {
	if r.base != "" {
		return r.ask(ctx)
	}
	if services == nil {
		return State{}
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	h, err := services.Check(ctx, &healthpb.HealthCheckRequest{})
	return State{Ready: err == nil && h.GetStatus() == healthpb.HealthCheckResponse_SERVING, Silent: status.Code(err) == codes.DeadlineExceeded}
}

// ask is one look. What can't be asked is not ready; an index that is refused or can't
// be read is not known.
func (r *remote) ask(ctx context.Context) State {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	s, err := r.readiness(ctx)
	if err != nil {
		return s
	}
	if models, err := r.index(ctx); err == nil {
		s.Models = models
	}
	return s
}

// readiness asks as Envoy's health checks do.
func (r *remote) readiness(ctx context.Context) (State, error) {
	res, _, err := r.exchange(ctx, http.MethodGet, "/v2/health/ready", nil, http.Header{xds.DegradedHeader: {"accept"}})
	s := State{Silent: silent(err)}
	if err == nil && res.StatusCode == http.StatusOK {
		s.Degraded = res.Header.Get("x-envoy-degraded") != ""
		s.Ready = !s.Degraded
	}
	return s, err
}

// silent says of an error that nothing came back, not even that nobody is there.
func silent(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout() || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// refusedLooks is how many looks a refused configuration is taken for one with sequences.
const refusedLooks = 20

// index is the repository index, in order.
func (r *remote) index(ctx context.Context) ([]xds.Model, error) {
	status, body, err := r.call(ctx, http.MethodPost, "/v2/repository/index", []byte("{}"))
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, unexpected("repository index", status)
	}
	var entries []struct{ Name, Version, State string }
	if err := json.Unmarshal(body, &entries); err != nil {
		return nil, fmt.Errorf("repository index: %w", err)
	}
	if now := time.Now(); now.After(r.again) {
		clear(r.refused)
		r.again = now.Add(refusedLooks * r.interval)
	}
	models := make([]xds.Model, 0, len(entries))
	known := make(map[string]bool, len(r.stateful))
	for _, e := range entries {
		m := xds.Model{Name: e.Name, Version: e.Version, Ready: e.State == "READY"}
		if m.Ready {
			if m.Stateful, err = r.sequences(ctx, e.Name); err != nil {
				return nil, err
			}
			if v, told := r.stateful[e.Name]; told { // not one that was refused or went
				known[e.Name] = v
			}
		}
		models = append(models, m)
	}
	r.stateful = known
	slices.SortFunc(models, xds.Model.Compare)
	return models, nil
}

// sequences says whether a model has a sequence batcher. A model that went away
// meanwhile has none; one whose configuration is refused may have, so that nothing of it
// is repeated.
func (r *remote) sequences(ctx context.Context, model string) (bool, error) {
	if v, ok := r.stateful[model]; ok {
		return v, nil
	}
	if r.refused[model] {
		return true, nil
	}
	status, body, err := r.call(ctx, http.MethodGet, "/v2/models/"+url.PathEscape(model)+"/config", nil)
	switch {
	case err != nil:
		return false, err
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		r.refused[model] = true
		return true, nil
	case status != http.StatusOK:
		return false, nil
	}
	var config struct {
		Sequences *json.RawMessage `json:"sequence_batching"`
	}
	if err := json.Unmarshal(body, &config); err != nil {
		return false, fmt.Errorf("model config: %w", err)
	}
	r.stateful[model] = config.Sequences != nil
	return config.Sequences != nil, nil
}

func (r *remote) call(ctx context.Context, method, path string, body []byte) (status int, answer []byte, err error) {
	res, answer, err := r.exchange(ctx, method, path, body, http.Header{})
	if res == nil {
		return 0, nil, err
	}
	return res.StatusCode, answer, err
}

// exchange is one call; the response's body is read and closed. Where there is none, it is nil.
func (r *remote) exchange(ctx context.Context, method, path string, body []byte, header http.Header,
) (res *http.Response, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for name, values := range header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	res, err = r.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return res, answer, err
}
