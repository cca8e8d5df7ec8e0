// Package extauthz answers Envoy's external authorization, version 3, over gRPC: the
// gateway's own decision on a call, before Envoy carries it. Routes and policy are the
// caller's (Deps); gateway joins them.
//
// Who calls is found as the gateway finds it: by the headers, or by the certificate that
// Envoy verified (its filter's include_peer_certificate gives it whole). What Envoy sends
// on has the caller's name in x-sluice-principal, for Envoy's own use, and a proof of it
// that a gateway believes. What a client sent under those names never gets through.
//
// A call that has no route is let pass: the gateway's answer to it is the same for
// everybody. The model of a gRPC call is in its message, so that here its action alone is
// decided, and the model by the gateway.
//
// Source: envoy/service/auth/v3/external_auth.proto and attribute_context.proto.
package extauthz

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/netip"
	"net/url"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds"
)

// Deps are a Server's collaborators.
type Deps struct {
	// Decide says whether a call may go on, and sets its principal.
	Decide func(ctx context.Context, env *infer.Envelope) error
	// HTTP and GRPC fill in what a call's method and path say of it; false: there is no
	// such route.
	HTTP func(method, path string, env *infer.Envelope) bool
	GRPC func(path string, env *infer.Envelope) bool
	// Prove gives a text by which a gateway knows the caller; "": there is none.
	Prove func(who *infer.Principal) (string, error)
	// Status is the HTTP status of a code.
	Status func(code infer.Code) int
}

// Server answers Check.
type Server struct {
	authv3.UnimplementedAuthorizationServer
	deps Deps
}

// New makes a Server.
func New(deps Deps) *Server { return &Server{deps: deps} }

// Register serves on r.
func (s *Server) Register(r grpc.ServiceRegistrar) { authv3.RegisterAuthorizationServer(r, s) }

// Check is the service's one method.
func (s *Server) Check(ctx context.Context, req *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	attributes := req.GetAttributes()
	call := attributes.GetRequest().GetHttp()
	headers := call.GetHeaders()
	env := &infer.Envelope{Header: shown(headers), BodySize: call.GetSize(),
		RequestID: headers["x-request-id"]}
	source(env, attributes.GetSource())
	path, _, _ := strings.Cut(call.GetPath(), "?")
	overGRPC := strings.HasPrefix(headers["content-type"], "application/grpc")
	// the path says what a call is, and its content type, which is the client's to choose, only how to answer
	if !s.deps.GRPC(path, env) && !s.deps.HTTP(call.GetMethod(), path, env) {
		return allowed(&infer.Principal{}, ""), nil
	}
	if err := s.deps.Decide(ctx, env); err != nil {
		return s.denied(err, overGRPC), nil
	}
	who := env.Principal
	if who == nil {
		who = &infer.Principal{}
	}
	proof, err := s.deps.Prove(who)
	if err != nil {
		return s.denied(infer.Errorf(infer.Internal, "the caller's name can't be proved"), overGRPC), nil
	}
	return allowed(who, proof), nil
}

// shown are a call's headers without those by which proxies vouch for others: who sent
// the call is the client of the Envoy that asks, whatever its address.
func shown(headers map[string]string) func(name string) string {
	return func(name string) string {
		switch name = strings.ToLower(name); name {
		case xds.ProofHeader, xds.PrincipalHeader, "x-forwarded-client-cert":
			return ""
		}
		return headers[name]
	}
}

// source tells where a call came from, as Envoy saw it.
func source(env *infer.Envelope, peer *authv3.AttributeContext_Peer) {
	address := peer.GetAddress()
	env.Unix = address.GetPipe() != nil
	if at, err := netip.ParseAddr(address.GetSocketAddress().GetAddress()); err == nil {
		env.Remote = netip.AddrPortFrom(at, uint16(address.GetSocketAddress().GetPortValue()))
	}
	env.Certificate = certificate(peer)
}

// certificate is the client's that Envoy verified; nil: it has none. Where Envoy gives
// the name alone, it is a certificate of that name.
func certificate(peer *authv3.AttributeContext_Peer) *x509.Certificate {
	if text, err := url.PathUnescape(peer.GetCertificate()); err == nil && text != "" {
		if block, _ := pem.Decode([]byte(text)); block != nil {
			if c, err := x509.ParseCertificate(block.Bytes); err == nil && peer.GetPrincipal() != "" {
				return c
			}
		}
	}
	name := peer.GetPrincipal()
	if u, err := url.Parse(name); err == nil && u.Scheme == "spiffe" && u.Host != "" {
		return &x509.Certificate{URIs: []*url.URL{u}}
	}
	return nil
}

func allowed(who *infer.Principal, proof string) *authv3.CheckResponse {
	ok := &authv3.OkHttpResponse{}
	set := func(name, value string) {
		if value == "" {
			ok.HeadersToRemove = append(ok.HeadersToRemove, name)
			return
		}
		ok.Headers = append(ok.Headers, header(name, value))
	}
	set(xds.PrincipalHeader, who.Name)
	set(xds.ProofHeader, proof)
	text := structpb.NewStringValue
	return &authv3.CheckResponse{Status: &statusv1.Status{Code: int32(codes.OK)}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: ok},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"principal": text(who.Name), "tenant": text(who.Tenant), "method": text(who.Method)}}}
}

// header replaces what the client sent under the name.
func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}

// denied is the gateway's own answer. Over gRPC Envoy makes a status of it: its code by
// the HTTP status, its message from the body.
func (s *Server) denied(err error, overGRPC bool) *authv3.CheckResponse {
	status := s.deps.Status(infer.CodeOf(err))
	out := &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode(status)}, Body: err.Error()}
	if !overGRPC {
		if body, jsonErr := json.Marshal(map[string]string{"error": err.Error()}); jsonErr == nil {
			out.Body = string(body)
		}
		out.Headers = append(out.Headers, header("content-type", "application/json"))
		if status == 401 {
			out.Headers = append(out.Headers, header("www-authenticate", "Bearer"))
		}
	}
	if reason := infer.ReasonOf(err); reason != "" {
		out.Headers = append(out.Headers, header(xds.ReasonHeader, string(reason)))
	}
	return &authv3.CheckResponse{Status: &statusv1.Status{Code: int32(code(status)), Message: string(infer.ReasonOf(err))},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: out}}
}

// code is anything but OK; Envoy looks at no more.
func code(status int) codes.Code {
	switch status {
	case 401:
		return codes.Unauthenticated
	case 503:
		return codes.Unavailable
	}
	return codes.PermissionDenied
}
