package httpapi

// LoadFunc gives the value of the header endpoint-load-metrics for an answer, "" where
// there is none; asked is the caller's header endpoint-load-metrics-format. It is called
// for every inference that was let in and must cost next to nothing.
type LoadFunc func(asked string) string

// reportLoad tells who balances between servers how busy this one is. Who was not let
// in is told nothing.
func (a *API) reportLoad(x *exchange, call *Call) {
	if a.load == nil || x.m.req.Envelope == nil {
		return
	}
	if v := a.load(call.Header.Get("Endpoint-Load-Metrics-Format")); v != "" {
		x.reply.Set("endpoint-load-metrics", v)
	}
}
