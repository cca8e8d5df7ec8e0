package httpapi

import "github.com/sluice-serve/sluice/infer"

// stray tells the pipeline of a call that has no route, or not by its method: nothing
// decided on it, but the access log knows of every answer.
func (a *API) stray(call *Call, reply *Reply) {
	env := &infer.Envelope{}
	a.envelope(env, call, route{})
	a.pipeline.Close(env, &infer.End{Status: reply.Status, Sent: reply.Length})
}
