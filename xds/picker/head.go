package picker

import (
	"net/url"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds"
)

// Headers by which a caller can say what else stands in the body, so that it is not
// looked at, beside xds.ModelHeader, xds.VersionHeader and xds.SequenceHeader.
const (
	StartHeader = "x-sluice-sequence-start" // "true": the call begins its sequence
	EndHeader   = "x-sluice-sequence-end"   // "true": it ends it
	KeyHeader   = "x-sluice-cache-key"      // calls with equal keys have equal answers
)

// head is what the headers of a call say.
type head struct {
	grpc      bool
	unary     bool   // of gRPC: one message, whose beginning can be waited for
	inference bool   // its body is an inference request
	path      string // of gRPC: the method
	encoding  string // of the body, or of its messages
	json      int64  // bytes of JSON at the body's beginning; 0: all of it
	named     bool   // over gRPC, the headers name the model
	keyed     bool   // the headers have the cache's key
	flagged   bool   // the headers have the sequence
	sequence  bool   // the body may say that the call is of a sequence
	caller    caller // who makes it
}

// The methods of gRPC that carry inference requests.
const (
	inferMethod  = "/inference.GRPCInferenceService/ModelInfer"
	streamMethod = "/inference.GRPCInferenceService/ModelStreamInfer"
)

// readHead reads a call's headers.
func readHead(headers []*corev3.HeaderValue) (head, Call) {
	var h head
	var c Call
	var model, version, encoding, messages string
	for _, v := range headers {
		value := string(v.RawValue)
		if value == "" {
			value = v.Value
		}
		h.caller.readShown(v.Key, value)
		switch v.Key {
		case ":path":
			h.path = value
		case "content-type":
			h.grpc = strings.HasPrefix(value, "application/grpc") && !strings.HasPrefix(value, "application/grpc-web")
		case "content-encoding":
			encoding = value
		case "grpc-encoding":
			messages = value
		case "inference-header-content-length":
			if n, err := strconv.ParseInt(value, 10, 64); err == nil && n > 0 {
				h.json = n
			}
		case xds.ModelHeader:
			model = value
		case xds.VersionHeader:
			version = value
		case xds.SequenceHeader:
			c.Sequence, h.flagged = correlation(value), value != ""
		case StartHeader:
			c.Start = value == "true"
		case EndHeader:
			c.End = value == "true"
		case KeyHeader:
			if value != "" {
				c.Key, h.keyed = hash(KeyHeader, value)|1, true
			}
		}
	}
	c.Bare = h.flagged
	if h.grpc {
		h.encoding = messages
		h.unary, h.inference = h.path == inferMethod, h.path == inferMethod || h.path == streamMethod
		c.Model, c.Version, h.named = model, version, model != ""
		return h, c
	}
	h.encoding = encoding
	c.Model, c.Version, h.inference = modelOf(h.path)
	h.unary = h.inference
	return h, c
}

// correlation is the ID of a sequence as a header has it: a number, if it can be one.
func correlation(value string) string {
	if n, err := strconv.ParseUint(value, 10, 64); err == nil {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	if value == "" {
		return ""
	}
	return sequenceText(value)
}

// sequenceText is a sequence's ID that is a text. Of a long one its beginning and a hash
// of the whole are kept, for callers choose it.
func sequenceText(id string) string { return infer.SequenceID(infer.Correlation{Str: id}) }

// modelOf takes model and version out of a path of the v2 protocol; "" where it names
// none. inference: its body is an inference request.
func modelOf(path string) (model, version string, inference bool) {
	path, _, _ = strings.Cut(path, "?")
	rest, ok := strings.CutPrefix(path, "/v2/models/")
	if !ok {
		return "", "", false
	}
	name, rest, _ := strings.Cut(rest, "/")
	if name == "stats" && rest == "" {
		return "", "", false
	}
	model, err := url.PathUnescape(name)
	if err != nil {
		return "", "", false
	}
	if after, ok := strings.CutPrefix(rest, "versions/"); ok {
		version, rest, _ = strings.Cut(after, "/")
	}
	return model, version, rest == "infer"
}
