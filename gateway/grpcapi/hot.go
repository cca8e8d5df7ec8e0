package grpcapi

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
)

// RegisterOn adds the services to our own transport: ModelInfer is read where it is
// received, everything else goes as in Register.
func (s *Service) RegisterOn(server *h2.Server) {
	if !s.standard {
		server.Handle("/inference.GRPCInferenceService/ModelInfer", hotInfer{s})
	}
	s.Register(server)
}

// hotInfer is ModelInfer as an h2.Method.
type hotInfer struct{ s *Service }

// Begin asks the pipeline.
func (m hotInfer) Begin(ctx context.Context) (h2.Call, error) {
	h := &hotCall{Call: newCall(), s: m.s}
	var err error
	h.envelope.Method = "ModelInfer"
	if h.ctx, err = m.s.open(ctx, &h.envelope, infer.ActionInference, "", ""); err != nil {
		err = m.s.failed(ctx, "ModelInfer", nil, err)
		m.s.ended(h.Call, err)
		return nil, err
	}
	return h, nil
}

// hotCall is one call of it.
type hotCall struct {
	*Call
	s   *Service
	ctx context.Context // the pipeline's, for this call alone
}

// Memory places a message so that its first large tensor is aligned.
func (h *hotCall) Memory(n int64, first []byte) (*infer.Buffer, error) {
	pad := int64(0)
	if n >= copyFrom {
		pad = alignUp(firstRaw(first)) - firstRaw(first)
	}
	memory, err := h.s.bodies.Body(pad + n)
	if err != nil {
		// For the count of refusals: the beginning names the model, as a rule. That the
		// call is refused is settled, so a fault of what there is adds nothing.
		_ = h.s.decodeOwned(h.Call, first)
	}
	return memory, err
}

// firstRaw is where the first large raw_input_contents begins in a message, 0 where its
// beginning has none.
func firstRaw(b []byte) int64 {
	cur := b
	for len(cur) > 0 {
		tag, n := varint(cur)
		if n <= 0 {
			return 0
		}
		cur = cur[n:]
		if protowire.Type(tag&7) != protowire.BytesType {
			return 0
		}
		l, n := varint(cur)
		if n <= 0 {
			return 0
		}
		cur = cur[n:]
		if tag>>3 == 7 && l >= tensorAlign {
			return int64(len(b) - len(cur))
		}
		if l > uint64(len(cur)) {
			return 0
		}
		cur = cur[l:]
	}
	return 0
}

// Abort ends a call whose message never came.
func (h *hotCall) Abort(err error) {
	h.s.pipeline.Refused(h.ctx, &h.Request, err)
	h.s.ended(h.Call, err)
}

// Serve decodes, infers and encodes.
func (h *hotCall) Serve(memory *infer.Buffer, message []byte) (reply mem.BufferSlice, err error) {
	defer func() {
		if p := recover(); p != nil {
			reply, err = nil, h.s.failed(h.ctx, "ModelInfer", &h.Request, infer.Recovered(p))
		}
		h.s.ended(h.Call, err)
	}()
	ctx, cancel := ahead(h.ctx)
	defer cancel()
	h.Request.Memory, h.size = memory, int64(len(message))
	if err := h.s.carry(ctx, h.Call, func() error { return h.s.decodeOwned(h.Call, message) }); err != nil {
		return nil, h.s.failed(h.ctx, "ModelInfer", &h.Request, err)
	}
	h.s.count(codes.OK)
	return h.reply, nil
}

// Sent ends the request's trace.
func (h *hotCall) Sent() { h.traceSent() }

// decodeOwned reads a message that lies in the request's memory.
func (s *Service) decodeOwned(c *Call, message []byte) error {
	d, ok := s.decoders.Get().(*decoder)
	if !ok {
		d = &decoder{}
	}
	err := d.request(c, message)
	if err == nil {
		err = d.bind(c, s.bodies)
	}
	d.reset()
	s.decoders.Put(d)
	return err
}
