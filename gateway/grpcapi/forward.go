package grpcapi

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
)

// forwardHeaders makes string parameters of the headers that the pattern matches. A
// header takes the place of a parameter of its name, and of several values the last
// counts, as they do for the original's models.
// Source: reference A4, header forwarding.
func (s *Service) forwardHeaders(ctx context.Context, req *infer.Request) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if st, ok := h2.FromContext(ctx); ok {
		md = st.Metadata()
	}
	var keys []string
	for key, values := range md {
		if len(values) > 0 && !strings.HasPrefix(key, ":") && s.forward.MatchString(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if reservedParam(key) {
			return infer.Errorf(infer.InvalidArg, "Header '%s' is reserved for Triton usage and cannot be forwarded.", key)
		}
		values := md[key]
		value := infer.Value{Kind: infer.KindString,
			Str: strings.ToValidUTF8(values[len(values)-1], "\uFFFD")} // of "-bin" headers it may be any bytes
		at := slices.IndexFunc(req.Params, func(p infer.Param) bool { return p.Name == key })
		if at < 0 {
			req.Params = append(req.Params, infer.Param{Name: key, Value: value})
			continue
		}
		req.Params[at].Value = value
	}
	return nil
}

// reservedParam says that a parameter of this name is the server's.
// Source: reference A4, reserved parameters.
func reservedParam(name string) bool {
	switch name {
	case "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output":
		return true
	}
	return strings.HasPrefix(name, reservedPrefix)
}
