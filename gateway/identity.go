package gateway

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/grpcapi"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds/extauthz"
)

// openAuth reads who may do what.
func (g *Gateway) openAuth() (err error) {
	deps := auth.Deps{Log: g.logger}
	if g.cfg.Auth.ReadsFiles() {
		deps.Reloaded = g.stats.Reload("policy").Done
	}
	if g.auth, err = auth.New(g.cfg.Auth, deps); err != nil {
		return err
	}
	if deps.Reloaded != nil {
		deps.Reloaded(nil) // New has read the files
	}
	return nil
}

// guarded puts the guard before the metrics.
func (g *Gateway) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		env := infer.Envelope{Protocol: "http", Method: r.Method, Path: r.URL.EscapedPath(), Action: infer.ActionMetrics,
			BodySize: r.ContentLength, Header: r.Header.Get, Fields: headerFields(r.Header)}
		if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			env.Remote = at
		}
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		env.Unix = local != nil && local.Network() == "unix"
		if err := g.auth.Open(r.Context(), &env); err != nil {
			refuse(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// headerFields counts fields of net/http.
type headerFields http.Header

// Count is how many fields have the name.
func (h headerFields) Count(name string) int { return len(http.Header(h).Values(name)) }

// refuse answers with an error as the HTTP front end would.
func refuse(w http.ResponseWriter, err error) {
	status := httpapi.Status(infer.CodeOf(err))
	body, jsonErr := json.Marshal(map[string]string{"error": err.Error()})
	if jsonErr != nil { // a string always is JSON
		body = []byte("{}")
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set(httpapi.ReasonHeader, string(infer.ReasonOf(err)))
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // who has left needs no answer
}

// ExtAuthz answers Envoy's ext_authz by a's decisions, with the routes of our front ends.
func ExtAuthz(a *auth.Auth) *extauthz.Server {
	return extauthz.New(extauthz.Deps{Decide: a.OpenForProxy, HTTP: describe, GRPC: grpcapi.Describe, Prove: a.Sign, Status: httpapi.Status})
}

// describe knows the metrics' route too, for Envoys that carry it.
func describe(method, path string, env *infer.Envelope) bool {
	if path == "/metrics" {
		env.Protocol, env.Method, env.Path, env.Action = "http", method, path, infer.ActionMetrics
		return true
	}
	return httpapi.Describe(method, path, env)
}
