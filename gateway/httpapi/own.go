package httpapi

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-serve/sluice/gateway/h1"
	"github.com/sluice-serve/sluice/infer"
)

// plain carries calls between gateway/h1 and the API.
type plain struct {
	api   *API
	calls sync.Pool // of *plainCall
}

// plainCall is the transport's part of one call.
type plainCall struct {
	Call
	header plainFields
	reply  Reply
	answer *h1.Answer

	// The text of the last HeaderLength, which mostly is the next one's too.
	length     int64
	lengthText string
}

// Serve is h1.Handler's.
func (p *plain) Serve(ctx context.Context, r *h1.Request, a *h1.Answer) (later bool) {
	c, ok := p.calls.Get().(*plainCall)
	if !ok {
		c = &plainCall{}
	}
	c.header.r, c.answer = r, a
	c.Call = Call{Method: r.Method, Path: r.Path, Header: &c.header, Body: r.Body, Length: r.Length, Remote: r.Remote,
		Unix: r.Unix, Peer: r.Peer, Inline: r.Inline, Burst: r.Burst, Stream: c, light: r.Inline}
	if r.Passing != nil {
		c.Descriptor = r.Passing
	}
	if p.api.Start(ctx, &c.Call, &c.reply, c) {
		return true
	}
	if c.reply.Streamed {
		a.Owner = c
		return false
	}
	c.fill()
	return false
}

// Light is h1.Handler's: an inference is started, and its answer comes when it has one.
// What is compressed may be much more than has come. What a platform's path stands for is
// not known by the path alone.
func (p *plain) Light(r *h1.Request) bool {
	if p.api.platform != nil || r.Method != "POST" || p.api.pipeline.Patient() ||
		!strings.HasSuffix(r.Path, "/infer") || r.Has("Content-Encoding") ||
		acceptEncoding(r.Get("Accept-Encoding")) != "" || acceptsStream(r.Get("Accept")) != unframed {
		return false
	}
	rt, ok := parsePath(r.Path)
	return ok && rt.kind == routeInfer
}

// Begin implements Streamer.
func (c *plainCall) Begin(h *Head) error {
	a := c.answer
	a.Status = h.Status
	a.Fields = append(a.Fields, h1.Field{Name: "Content-Type", Value: h.ContentType})
	for _, f := range h.Fields {
		a.Fields = append(a.Fields, h1.Field(f))
	}
	return a.Begin()
}

// Stream implements Streamer.
func (c *plainCall) Stream(b []byte) error { return c.answer.Stream(b) }

// Answered implements Answerer.
func (c *plainCall) Answered() infer.Flusher {
	c.fill()
	return c.answer.Done()
}

// fill makes the answer of the reply.
func (c *plainCall) fill() {
	a, reply := c.answer, &c.reply
	a.Owner, a.Status, a.Chunks, a.Length = c, reply.Status, append(a.Chunks, reply.Chunks...), reply.Length
	if reply.Source != nil {
		a.Source = reply.Source
	}
	a.Fields = append(a.Fields, h1.Field{Name: "Content-Type", Value: reply.ContentType})
	if reply.HeaderLength >= 0 {
		if c.lengthText == "" || c.length != reply.HeaderLength {
			c.length, c.lengthText = reply.HeaderLength, strconv.FormatInt(reply.HeaderLength, 10)
		}
		a.Fields = append(a.Fields, h1.Field{Name: "Inference-Header-Content-Length", Value: c.lengthText})
	}
	for _, f := range reply.Fields {
		a.Fields = append(a.Fields, h1.Field(f))
	}
}

// Written is h1.Handler's.
func (p *plain) Written(a *h1.Answer) {
	c, ok := a.Owner.(*plainCall)
	if !ok {
		return
	}
	a.Owner = nil
	clear(a.Chunks)
	a.Source = nil
	c.reply.Release()
	c.Call, c.header.r, c.answer = Call{}, nil, nil
	p.calls.Put(c)
}

// plainFields shows the fields of a request.
type plainFields struct{ r *h1.Request }

// Get implements Header.
func (f *plainFields) Get(name string) string { return f.r.Get(name) }

// Count implements Header.
func (f *plainFields) Count(name string) int { return f.r.Count(name) }

// Each implements Header.
func (f *plainFields) Each(visit func(name, value string) bool) {
	for i, field := range f.r.Fields {
		if first(f.r.Fields[:i], field.Name) && !visit(field.Name, field.Value) {
			return
		}
	}
}

func first(before []h1.Field, name string) bool {
	r := h1.Request{Fields: before}
	return !r.Has(name)
}
