package grpcapi

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// traceReceived marks when the message came: from the call's opening to its last byte.
func (c *Call) traceReceived() {
	end := c.Request.Times.RequestStart
	if c.Request.Trace.Start == 0 {
		end = c.Request.Times.RequestEnd
	}
	c.Request.Trace.Mark("GRPC_WAITREAD_START", c.envelope.Opened)
	c.Request.Trace.Mark("GRPC_WAITREAD_END", end)
}

// traceSending marks that the answer, or the error, is ready for the transport.
func (c *Call) traceSending() {
	if c.Request.Trace != nil {
		c.Request.Trace.Mark("GRPC_SEND_START", infer.Now())
	}
}

// traceSent marks that the transport has taken the answer, and ends the trace.
func (c *Call) traceSent() {
	if t := c.Request.Trace; t != nil {
		c.Request.Trace = nil
		t.Mark("GRPC_SEND_END", infer.Now())
		t.End()
	}
}

// TraceSetting changes and gives the trace settings, globally or of one model.
func (s *Service) TraceSetting(ctx context.Context, r *inference.TraceSettingRequest) (*inference.TraceSettingResponse, error) {
	return answer(ctx, s, "TraceSetting", infer.ActionTrace, r.ModelName, "", func() (*inference.TraceSettingResponse, error) {
		return s.control.TraceSettings(r)
	})
}
