package gateway

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
)

// openAuth reads who may do what, and puts that before everything.
func (g *Gateway) openAuth() (err error) {
	if g.auth, err = auth.New(g.cfg.Auth, g.logger); err != nil {
		return err
	}
	g.pipeline.Guard(g.auth)
	if c := &g.cfg.Auth; c.Identity != "" || c.APIKeys != "" || c.Policy != "" {
		reload := g.stats.Reload("policy")
		reload.Done(nil) // New has read the files
		g.auth.Reloaded(reload.Done)
	}
	g.stats.Before(g.guarded)
	return nil
}

// guarded puts the guard before the metrics.
func (g *Gateway) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		env := infer.Envelope{Protocol: "http", Method: r.Method, Path: r.URL.EscapedPath(), Action: infer.ActionMetrics,
			BodySize: r.ContentLength, Header: r.Header.Get}
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
