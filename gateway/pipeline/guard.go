package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// Guard says who calls and what they may do. It is asked before anything is read or
// looked up, so that nobody learns of a model what they may not know. Unauthenticated or
// PermissionDenied are its errors.
type Guard interface {
	// Open finds the caller, sets env.Principal, and decides on the action, and on the
	// model where env names one.
	Open(ctx context.Context, env *infer.Envelope) error
	// Model decides on a model that only the body names.
	Model(env *infer.Envelope, model string) error
}

// Admission bounds what callers may have going on. Its refusals are ResourceExhausted
// or Unavailable, with a reason.
type Admission interface {
	// Open takes a call in, or refuses it, by its envelope; it may set env.Admitted.
	Open(ctx context.Context, env *infer.Envelope) error
	// Request charges what is known of an inference once it is decoded and valid.
	Request(ctx context.Context, req *infer.Request) error
	// Close ends a call that Open took in.
	Close(env *infer.Envelope, end *infer.End)
	// Waits says that Open and Request may wait, as for limits that are shared over a
	// network.
	Waits() bool
}

// Patient says that Open may wait for an Admission that does.
func (p *Pipeline) Patient() bool { return p.patient }

// Visible says that a list which a call asks for may show a model.
func (p *Pipeline) Visible(env *infer.Envelope, model string) bool {
	return p.Allowed(env, model) == nil
}

// Allowed decides on a model that a call's body names beside that of its envelope. Its
// errors are the Guard's.
func (p *Pipeline) Allowed(env *infer.Envelope, model string) error {
	if p.deps.Guard == nil {
		return nil
	}
	return p.deps.Guard.Model(env, model)
}

// known decides on a request whose body alone named the model, and gives it the
// caller's name, weight and scope of shared answers.
func (p *Pipeline) known(req *infer.Request) error {
	if req.Envelope == nil {
		return nil
	}
	req.Weight, req.Origin = req.Envelope.Weight, req.Envelope
	if who := req.Envelope.Principal; who != nil {
		req.Tenant, req.Caller = who.Tenant, who.Name
	}
	if p.deps.Guard == nil || req.Envelope.Model != "" {
		return nil
	}
	return p.deps.Guard.Model(req.Envelope, req.Model)
}
