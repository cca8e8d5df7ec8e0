package gateway

import (
	"bufio"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/grpcapi"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
)

// matrixPolicy and matrixRights say the same, one for the server, one for the test: who
// may do which action, "!" before it where only changes are meant, "?" where only reading
// is.
const matrixPolicy = `rules:
- {principals: app, actions: infer, models: m}
- {principals: app, actions: metadata}
- {principals: reader, actions: read}
- {groups: ops, actions: [control, trace]}
- {principals: root, actions: admin}
- {principals: watcher, actions: [metrics, shared-memory, logging]}
`

var matrixRights = map[string][]string{
	"":        {"health"},
	"app":     {"health", "inference", "metadata"},
	"reader":  {"health", "metadata", "model-config", "statistics", "?model-repository"},
	"oncall":  {"health", "!model-repository", "trace"},
	"watcher": {"health", "metrics", "shared-memory", "logging"},
	"root": {"health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace", "logging",
		"metrics"},
	"forger": nil, // shows a wrong key: not even health's exception helps it, elsewhere
}

func may(who string, action string, change bool) bool {
	if who == "forger" {
		return action == "health"
	}
	for _, right := range matrixRights[who] {
		if right == action || change && right == "!"+action || !change && right == "?"+action {
			return true
		}
	}
	return false
}

// routeLines are the routes of a front end, as its own tests wrote them down.
func routeLines(t *testing.T, name string) [][]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all [][]string
	for s := bufio.NewScanner(f); s.Scan(); {
		all = append(all, strings.Split(s.Text(), " "))
	}
	if len(all) < 20 {
		t.Fatalf("%s has %d lines", name, len(all))
	}
	return all
}

// matrix is a guard, and the header by which each caller is known.
func matrix(t *testing.T) (*auth.Auth, map[string]string) {
	t.Helper()
	dir, callers := t.TempDir(), map[string]string{"": "", "forger": "sluice_wrong"}
	var lines strings.Builder
	for who := range matrixRights {
		if who == "" || who == "forger" {
			continue
		}
		var groups []string
		if who == "oncall" {
			groups = []string{"ops"}
		}
		key, line, err := auth.NewKey(who, "", groups)
		if err != nil {
			t.Fatal(err)
		}
		callers[who] = key
		lines.WriteString(line + "\n")
	}
	for name, text := range map[string]string{"keys": lines.String(), "policy": matrixPolicy, "key": strings.Repeat("p", 40),
		"id": "api-keys: keys\ncertificates: {names: spiffe}\nproxies: {trusted: 10.0.0.1, proof-key: key}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, err := auth.New(auth.Config{Identity: filepath.Join(dir, "id"), Policy: filepath.Join(dir, "policy"), ClientMemory: auth.ClientMemoryAll},
		auth.Deps{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return a, callers
}

// TestMatrix: every route and every caller, as the gateway decides and as it answers
// Envoy's ext_authz.
func TestMatrix(t *testing.T) {
	a, callers := matrix(t)
	envoy := ExtAuthz(a)
	check := func(who, path string, env *infer.Envelope, request *authv3.AttributeContext_HttpRequest) {
		t.Helper()
		header := map[string]string{"x-api-key": callers[who], "x-sluice-principal": "root", "x-sluice-proof": "v1.e30.forged"}
		env.Header = func(name string) string { return header[strings.ToLower(name)] }
		env.Remote = netip.MustParseAddrPort("192.0.2.1:1")
		want := may(who, env.Action.String(), env.Change)
		err := a.Open(t.Context(), env)
		if (err == nil) != want {
			t.Errorf("%q, %s: %v, want allowed %t", who, path, err, want)
		}
		if err != nil {
			code := infer.PermissionDenied
			if who == "" || who == "forger" {
				code = infer.Unauthenticated
			}
			if infer.CodeOf(err) != code {
				t.Errorf("%q, %s: %v, want %v", who, path, infer.CodeOf(err), code)
			}
		}
		for name, value := range header {
			request.Headers[name] = value
		}
		resp, err2 := envoy.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
			Source: &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{Address: "192.0.2.1"}}}},
			Request: &authv3.AttributeContext_Request{Http: request}}})
		if err2 != nil || (resp.GetStatus().GetCode() == 0) != want {
			t.Fatalf("%q, %s: ext_authz answers %v, %v; want allowed %t", who, path, resp, err2, want)
		}
		if !want && !strings.Contains(resp.GetDeniedResponse().GetBody(), err.Error()) && !strings.Contains(resp.GetDeniedResponse().GetBody(), "'") {
			t.Errorf("%q, %s: ext_authz says %q, the gateway %q", who, path, resp.GetDeniedResponse().GetBody(), err)
		}
		if want {
			passes(t, a, who, resp.GetOkResponse())
		}
	}
	for who := range matrixRights {
		for _, line := range routeLines(t, "httpapi/testdata/routes.txt") {
			var env infer.Envelope
			if !httpapi.Describe(line[0], line[1], &env) {
				t.Fatal(line)
			}
			check(who, line[0]+" "+line[1], &env, &authv3.AttributeContext_HttpRequest{Method: line[0], Path: line[1] + "?a=b", Headers: map[string]string{}})
		}
		for _, line := range routeLines(t, "grpcapi/testdata/methods.txt") {
			var env infer.Envelope
			if !grpcapi.Describe(line[0], &env) {
				t.Fatal(line)
			}
			check(who, line[0], &env, &authv3.AttributeContext_HttpRequest{Method: "POST", Path: line[0], Headers: map[string]string{"content-type": "application/grpc+proto"}})
		}
		env := infer.Envelope{Protocol: "http", Action: infer.ActionMetrics}
		check(who, "/metrics", &env, &authv3.AttributeContext_HttpRequest{Method: "GET", Path: "/metrics", Headers: map[string]string{}})
	}
}

// passes checks that what ext_authz adds says who it is, to a gateway behind Envoy too,
// and that nothing is left of what the client forged.
func passes(t *testing.T, a *auth.Auth, who string, ok *authv3.OkHttpResponse) {
	t.Helper()
	header := map[string]string{"x-sluice-principal": "root", "x-sluice-proof": "v1.e30.forged"}
	for _, name := range ok.GetHeadersToRemove() {
		delete(header, name)
	}
	for _, h := range ok.GetHeaders() {
		if h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			t.Errorf("%s is appended to what the client sent", h.GetHeader().GetKey())
		}
		header[h.GetHeader().GetKey()] = h.GetHeader().GetValue()
	}
	if who == "forger" { // health, which is open
		who = ""
	}
	if header["x-sluice-principal"] != who {
		t.Errorf("%q goes on as %q", who, header["x-sluice-principal"])
	}
	env := infer.Envelope{Protocol: "http", Action: infer.ActionHealth, Remote: netip.MustParseAddrPort("10.0.0.1:1"),
		Header: func(name string) string { return header[strings.ToLower(name)] }}
	if err := a.Open(t.Context(), &env); err != nil || env.Principal.Name != who {
		t.Errorf("%q is %+v behind Envoy, %v", who, env.Principal, err)
	}
}

// TestExtAuthzCertificate: Envoy's word on a client's certificate counts, a header's does
// not; the answer over gRPC is a text, not JSON.
func TestExtAuthzCertificate(t *testing.T) {
	a, _ := matrix(t)
	envoy := ExtAuthz(a)
	ask := func(principal, contentType, path string) *authv3.CheckResponse {
		resp, err := envoy.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
			Source: &authv3.AttributeContext_Peer{Principal: principal, Certificate: url.PathEscape("no PEM")},
			Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{Method: "POST", Path: path,
				Headers: map[string]string{"x-forwarded-client-cert": "URI=spiffe://mesh/root", "content-type": contentType}}}}})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := ask("spiffe://mesh/app", "application/json", "/v2/models/m/infer")
	if got := resp.GetDeniedResponse(); got.GetStatus().GetCode() != 403 || got.GetBody() != `{"error":"'spiffe://mesh/app' has no right to 'inference' on model 'm'"}` {
		t.Errorf("got %v", resp)
	}
	near, err := envoy.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Source: &authv3.AttributeContext_Peer{Principal: "spiffe://mesh/app", Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: "10.0.0.1"}}}}, // where trusted proxies are, too
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{Method: "GET", Path: "/v2/health/live"}}}})
	if got := near.GetDynamicMetadata().GetFields()["principal"].GetStringValue(); err != nil || got != "spiffe://mesh/app" {
		t.Errorf("a client with a trusted proxy's address is %q, %v", got, err)
	}
	resp = ask("", "application/grpc", "/inference.GRPCInferenceService/ModelInfer")
	if got := resp.GetDeniedResponse(); got.GetStatus().GetCode() != 401 || got.GetBody() != "'inference' needs a caller who is known" {
		t.Errorf("got %v", resp)
	}
	// Envoy sends by the content type what it takes for gRPC elsewhere; who is let pass must not depend on it
	for _, contentType := range []string{"application/grpc", "application/grpcfoo", "application/grpc+proto"} {
		if resp := ask("", contentType, "/v2/models/m/infer"); resp.GetStatus().GetCode() == 0 {
			t.Errorf("%s lets an HTTP call pass: %v", contentType, resp)
		}
	}
	for _, contentType := range []string{"", "application/json", "APPLICATION/GRPC"} {
		if resp := ask("", contentType, "/inference.GRPCInferenceService/ModelInfer"); resp.GetStatus().GetCode() == 0 {
			t.Errorf("%q lets a gRPC call pass: %v", contentType, resp)
		}
	}
	if resp := ask("", "application/json", "/favicon.ico"); resp.GetStatus().GetCode() != 0 {
		t.Errorf("a path without a route: %v", resp)
	}
}
