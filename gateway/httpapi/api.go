package httpapi

import (
	"context"
	"crypto/x509"
	"fmt"
	"hash/maphash"
	"io"
	"net/netip"
	"os"
	"regexp"
	"sync"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// Pipeline is where requests go.
type Pipeline interface {
	// Open decides by the envelope alone, before the body is read. wait, where it is not
	// nil, is what is left of it: it must be called on a goroutine that may block, before
	// the request goes on.
	Open(ctx context.Context, env *infer.Envelope) (wait func() error, err error)
	// Patient says that Open may give what has to be waited for.
	Patient() bool
	// Close is called once for each call, also one that Open refused, when its answer is
	// made; end is read until it returns.
	Close(env *infer.Envelope, end *infer.End)
	// Start executes a request: to has what comes of it. wait, where it is not nil, must be
	// called on a goroutine that may block.
	Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func())
	// Infer is Start for a caller that waits: to is called on this goroutine, and its Done
	// before Infer returns.
	Infer(ctx context.Context, req *infer.Request, to infer.Sink)
	// Refused counts a request that was opened and never started; of req, model and
	// version are read.
	Refused(ctx context.Context, req *infer.Request, err error)
	// Visible says that a list which the call asked for may show a model.
	Visible(env *infer.Envelope, model string) bool
	// Allowed decides on a model that the call's body names beside that of the envelope.
	Allowed(env *infer.Envelope, model string) error
}

// Control answers what is no inference. Versions are as the client wrote them, "" for
// none; errors are infer's. The messages stay the callee's and are only read.
type Control interface {
	Live() bool
	// ReadyNow and ModelReadyNow ask the models that say themselves whether they are ready. They may
	// take seconds.
	ReadyNow(ctx context.Context) bool
	// Degraded says that ReadyNow says no, but some models serve, or will with their worker.
	Degraded() bool
	ModelReadyNow(ctx context.Context, name, version string) (bool, error)
	ServerMetadata() *inference.ServerMetadataResponse
	ModelMetadata(name, version string) (*inference.ModelMetadataResponse, error)
	ModelConfig(name, version string) (*modelconfig.ModelConfig, error)
	// Statistics of one model, or with an empty name of all.
	Statistics(name, version string) (*inference.ModelStatisticsResponse, error)
	Index(ready bool) (*inference.RepositoryIndexResponse, error)
	// Load makes a model serve what its folder says, or the parameters bring: "config"
	// as a string, "file:<path>" as bytes, which are never changed any more.
	Load(ctx context.Context, name string, params map[string]*inference.ModelRepositoryParameter) error
	// Unload takes a model out of service, with dependents those it alone needs.
	Unload(ctx context.Context, name string, dependents bool) error
	// PurgeCache removes answers from the response cache: of a model, one version, a tag.
	PurgeCache(ctx context.Context, model, version, tag string) (int64, error)
	// LogSettings changes what settings names and returns all settings.
	LogSettings(req *inference.LogSettingsRequest) (*inference.LogSettingsResponse, error)
	// TraceSettings changes what settings names, an empty value being a clear, and
	// returns all settings of the model, or with no model the global ones.
	TraceSettings(req *inference.TraceSettingRequest) (*inference.TraceSettingResponse, error)
	// RawInput gives name, datatype and shape of the one input that a raw binary
	// request of size bytes is for; its Data is not set. For BYTES the size is that of
	// the single element.
	RawInput(model, version string, size int64) (infer.Tensor, error)
}

// Bodies hands out counted memory for request bodies; gateway/memory fits.
type Bodies interface {
	// Body gives n bytes of undefined content; the caller holds the one reference.
	Body(n int64) (*infer.Buffer, error)
	// Most is the largest body that there will ever be memory for, and Fits refuses n bytes
	// that are more.
	Most() int64
	Fits(n int64) error
	// Aside copies what has come of a body out of the way of a larger piece.
	Aside(data []byte) (*infer.Buffer, error)
	// Scarce says that bodies get less on their announced lengths.
	Scarce() bool
	// Pressed says that memory of bodies or of answers runs out: answers that their clients
	// don't take are dropped soon.
	Pressed() bool
}

// Limits bound what one call may make the server do. Zero fields take the default.
type Limits struct {
	// MaxJSON bytes of JSON in a request, and of a body once it is decompressed;
	// default 64 MiB. Source: --http-max-input-size of the original.
	MaxJSON int64
	// MaxBody bytes of a whole body as it arrives; default 2 GiB - 1, what gRPC allows.
	MaxBody int64
	// MaxRatio of decompressed to compressed bytes, looked at from 8 MiB on;
	// default 256.
	MaxRatio int64
}

func (l Limits) withDefaults() Limits {
	if l.MaxJSON <= 0 {
		l.MaxJSON = 64 << 20
	}
	if l.MaxBody <= 0 {
		l.MaxBody = 1<<31 - 1
	}
	if l.MaxRatio <= 0 {
		l.MaxRatio = 256
	}
	return l
}

// APIConfig is what the protocol can be told.
type APIConfig struct {
	Limits
	// HeaderForward is a regular expression (RE2); headers whose name it matches, in
	// any part and any case, become string parameters of the request under their
	// lower-case name. "" forwards none. Source: --http-header-forward-pattern.
	HeaderForward string
	Platform      *Platform // nil: the protocol's own paths
	// NoKeptHeads makes it read the JSON part of every request, whatever came before. For
	// tests: the answers are the same.
	NoKeptHeads bool
}

// APIDeps are the API's collaborators. Failed and Answered may be nil; they are called
// by many goroutines at a time.
type APIDeps struct {
	Pipeline Pipeline
	Control  Control
	Bodies   Bodies
	// Failed is told of every call that ends with an error, before the answer goes out;
	// req is nil for all but inference.
	Failed func(ctx context.Context, path string, req *infer.Request, err error)
	// Answered is told the status of every answer.
	Answered func(status int)
	Regions  *regions.Registry // of clients' shared memory; nil: there is none
	Load     LoadFunc          // nil: answers say nothing of the load
	// Responses counts what replies hold on the heap until they are written; nil: it is not counted.
	Responses *infer.Budget
}

// API speaks the protocol.
type API struct {
	limits   Limits
	forward  *regexp.Regexp // nil: none
	pipeline Pipeline
	control  Control
	bodies   Bodies
	failure  func(ctx context.Context, path string, req *infer.Request, err error)
	answered func(status int)
	load     LoadFunc          // nil: none
	regions  *regions.Registry // nil: none
	platform *Platform

	responses *infer.Budget // nil: none

	exchanges sync.Pool // of *exchange
	messages  sync.Pool // of *message
	heads     heads
	deflaters deflaters
}

// NewAPI makes an API. Its error is a HeaderForward that is no regular expression.
func NewAPI(c APIConfig, d APIDeps) (*API, error) {
	a := &API{limits: c.withDefaults(), pipeline: d.Pipeline, control: d.Control, bodies: d.Bodies, platform: c.Platform,
		regions: d.Regions, responses: d.Responses, failure: d.Failed, answered: d.Answered, load: d.Load}
	if a.failure == nil {
		a.failure = func(context.Context, string, *infer.Request, error) {}
	}
	if a.answered == nil {
		a.answered = func(int) {}
	}
	a.heads.seed, a.heads.on = maphash.MakeSeed(), !c.NoKeptHeads
	if c.HeaderForward != "" {
		re, err := regexp.Compile("(?i)" + c.HeaderForward)
		if err != nil {
			return nil, fmt.Errorf("header forward pattern: %w", err)
		}
		a.forward = re
	}
	return a, nil
}

// Header is how a transport shows the fields of a call.
type Header interface {
	// Get gives the first value of a field, "" where absent. name is in canonical
	// form ("Content-Encoding").
	Get(name string) string
	// Count is how many fields have the name.
	Count(name string) int
	// Each calls f for each field with its first value until it returns false.
	Each(f func(name, value string) bool)
}

// Passer gives a descriptor that a client passed. A file of nil: none came. An error: more
// than one did. listen.Passing fits.
type Passer interface{ TakeFile() (*os.File, error) }

// Call is one call as a transport hands it over. It is valid until Serve returns.
type Call struct {
	Method string
	Path   string // as sent, percent-encoded, without the query
	Header Header
	Body   io.Reader // never nil; its errors are those of the transport
	Length int64     // bytes of Body; -1: unknown
	Remote netip.AddrPort
	Unix   bool
	Peer   infer.Peer
	// Inline says that Start must not wait, nor write to a log: its caller serves others too.
	Inline bool
	Burst  *loop.Burst // what it was read in; nil: nothing that is waited for
	// Certificate is the client's, verified by the transport; nil: none.
	Certificate *x509.Certificate
	// Stream sends answers that come piece by piece; a Reply that is Streamed has gone
	// that way.
	Stream Streamer
	// Descriptor gives the one descriptor that came with the call, which is then the
	// caller's; nil: the transport takes none.
	Descriptor Passer

	env   *infer.Envelope // of a control call, once it is opened
	read  int64           // bytes of a control call's body
	alias *Alias          // of a Platform's call, once it is resolved
	light bool            // plain.Light has seen that nothing is compressed or streamed
}

// Serve answers one call into reply, which the caller writes out and then Releases.
// ctx ends when the client has gone.
func (a *API) Serve(ctx context.Context, call *Call, reply *Reply) { a.Start(ctx, call, reply, nil) }

// Answerer hears of a reply that was started.
type Answerer interface {
	// Answered says that the reply is ready. It is called once, on any goroutine, which then
	// flushes what it returns, if that is not nil.
	Answered() infer.Flusher
}

// Start is Serve without waiting, where that can be. With later the reply is ready when
// to's Answered is called, which may be before Start returns; the call must stay as it is
// until then. Else it is ready now. Without to it always is.
func (a *API) Start(ctx context.Context, call *Call, reply *Reply, to Answerer) (later bool) {
	x := a.serve(ctx, call, reply)
	if x != nil && x.encoding == "" { // compressing would hold up others
		x.to = to
	}
	switch {
	case x == nil: // it is answered
	case x.refused != nil && call.Inline:
		go func() { infer.Flush(x.finish(x.refused)) }() // it is logged
		return true
	case x.refused != nil:
		x.to = nil
		x.finish(x.refused)
	case x.to == nil:
		a.pipeline.Infer(ctx, &x.m.req, x)
	default:
		x.start()
		return true // x may be another call's by now
	}
	a.replied(reply)
	return false
}

// replied takes down that a reply is ready.
func (a *API) replied(reply *Reply) {
	if reply.trace != nil {
		reply.sendStart = infer.Now()
	}
	a.answered(reply.Status)
}

// serve answers a call, but for the one answer of an inference: that one's exchange is
// ready to go on, or refused.
func (a *API) serve(ctx context.Context, call *Call, reply *Reply) *exchange {
	defer func() {
		if p := recover(); p != nil {
			a.fail(ctx, call, nil, reply, infer.Recovered(p))
		}
	}()
	rt, ok := a.resolve(call)
	switch {
	case !ok && a.aside(ctx, call, reply):
	case !ok:
		reply.text(404, "Not Found")
		a.stray(call, reply)
	case !rt.allows(call.method()):
		reply.text(405, "Method Not Allowed")
		reply.Set("Allow", rt.methods())
		a.stray(call, reply)
	case rt.kind == routeInfer:
		frame := call.frame()
		if frame == unframed {
			return a.inference(ctx, call, rt, reply)
		}
		a.serveStreamed(ctx, call, rt, reply, frame)
	case rt.kind == routeGenerate:
		a.serveStreamed(ctx, call, rt, reply, unframed)
	case rt.kind == routeGenerateStream:
		a.serveStreamed(ctx, call, rt, reply, events)
	default:
		a.serveControl(ctx, call, rt, reply)
	}
	return nil
}

// fail makes the reply an error, and tells of it. req is nil for all but inference.
func (a *API) fail(ctx context.Context, call *Call, req *infer.Request, reply *Reply, err error) {
	a.failure(ctx, call.Path, req, err)
	reply.fail(err)
	if call.alias != nil && call.alias.failed != nil {
		reply.Status = call.alias.failed(err)
	}
}
