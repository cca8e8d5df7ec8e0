package httpapi

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// Platform is how the front end of a hosting platform differs from the protocol's own:
// other paths, and a content type of its own for bodies with binary tensors. Bodies are
// never compressed there, and a header field has no say in how an answer is sent.
// Source: the original's sagemaker_server.cc and vertex_ai_server.cc.
type Platform struct {
	// Alias says what a call stands for; never nil. It is called by many goroutines at a
	// time.
	Alias func(call *Call) *Alias
	// Binary begins the content type of a body with binary tensors; the length of its JSON
	// part stands behind it.
	Binary string
	// AnswerBinary says that answers have that content type too; false: they are as the
	// protocol has them.
	AnswerBinary bool
}

// Alias is what a call of a Platform stands for. It is never changed.
type Alias struct {
	rt     route
	method string // in place of the call's; "": as it came
	status int    // answered at once, with an empty body; 0: it is not
	fault  error  // answered at once; nil: none
	own    *Own
	failed func(error) int // status of errors; nil: Status
}

// Refuse answers with a status and an empty body.
func Refuse(status int) *Alias { return &Alias{status: status} }

// Fault answers with an error.
func Fault(err error) *Alias { return &Alias{fault: err} }

// Health is the liveness, or the readiness, of the server.
func Health(ready bool) *Alias {
	if ready {
		return &Alias{rt: route{kind: routeReady}}
	}
	return &Alias{rt: route{kind: routeLive}}
}

// Inference runs a model's newest version. call is infer, generate or generate_stream;
// failed gives the status of an error, nil being the protocol's own.
func Inference(call, model string, failed func(error) int) *Alias {
	kind := routeInfer
	switch call {
	case "generate":
		kind = routeGenerate
	case "generate_stream":
		kind = routeGenerateStream
	}
	return &Alias{rt: route{kind: kind, model: model}, failed: failed}
}

// Redirect stands for a path of the protocol, if it is one that a call may be sent on to:
// those that only read, and inference. What changes the server is 403, everything else 400.
// Source: VertexAiAPIServer::Handle of the original 2.73.
func Redirect(path string) *Alias {
	rt, ok := parsePath(path)
	if !ok {
		return Refuse(400)
	}
	switch rt.kind {
	case routeServer, routeLive, routeReady, routeModel, routeModelReady, routeConfig, routeStats, routeAllStats, routeMemoryStatus:
		return &Alias{rt: rt, method: "GET"}
	case routeInfer, routeIndex:
		return &Alias{rt: rt, method: "POST"}
	case routeMemoryChange, routeLoad, routeUnload, routeRepositoryLoad:
		return Refuse(403)
	}
	return Refuse(400)
}

// Own is a call that the protocol has not. Answer gives the answer, or the error for it.
type Own struct {
	Action infer.Action
	Change bool
	Model  string
	Answer func(ctx context.Context, q *Question, reply *Reply) error
	Failed func(error) int // status of errors; nil: Status
}

// Alias is the alias that stands for it.
func (o *Own) Alias() *Alias { return &Alias{own: o, failed: o.Failed} }

// Question is a call of an Own.
type Question struct {
	*Call
	api *API
}

// Document reads the body, which is small.
func (q *Question) Document(ctx context.Context) ([]byte, error) { return q.api.document(ctx, q.Call) }

// Visible says that a list may show a model.
func (q *Question) Visible(model string) bool { return q.api.pipeline.Visible(q.env, model) }

// Allowed decides on a model that the call names beside its Own's: the policy's error, if
// the caller may not do that with it.
func (q *Question) Allowed(model string) error { return q.api.pipeline.Allowed(q.env, model) }

// Answer makes the reply a body, which it keeps.
func (r *Reply) Answer(contentType string, body []byte) {
	r.reset()
	r.Status, r.ContentType = 200, contentType
	r.setBody(body)
}

// Empty makes the reply a status without a body.
func (r *Reply) Empty(status int) { r.empty(status) }

// Segment decodes a segment of a path as the routes of the protocol do.
func Segment(s string) string { return segment(s) }

// Strings reads the members of a JSON document that into names, which must be strings;
// others are skipped. Faults have the original's words.
func Strings(doc []byte, into map[string]*string) error {
	return members(doc, func(s *json.Scanner, key string) error {
		p := into[key]
		if p == nil {
			return s.Skip()
		}
		if s.Kind() != json.String {
			if err := s.Skip(); err != nil {
				return err
			}
			return &json.Error{Text: json.NotString}
		}
		text, err := s.Str()
		*p = string(text)
		return err
	})
}

// resolve finds what a call is for. False: there is no such route.
func (a *API) resolve(call *Call) (route, bool) {
	if a.platform == nil {
		return parsePath(call.Path)
	}
	if call.alias == nil {
		call.alias = a.platform.Alias(call)
	}
	return call.alias.rt, call.alias.rt.kind != routeNone
}

// method is the one that a call counts by.
func (c *Call) method() string {
	if c.alias != nil && c.alias.method != "" {
		return c.alias.method
	}
	return c.Method
}

// aside answers a call that has no route of the protocol, but an alias. False: it has none.
func (a *API) aside(ctx context.Context, call *Call, reply *Reply) bool {
	alias := call.alias
	switch {
	case alias == nil:
		return false
	case alias.fault != nil:
		a.fail(ctx, call, nil, reply, alias.fault)
		a.stray(call, reply)
	case alias.own != nil:
		a.serveControl(ctx, call, route{}, reply)
	case alias.status != 0:
		reply.empty(alias.status)
		a.stray(call, reply)
	default:
		return false
	}
	return true
}

// encodings are those that a call says of its answer and of its body.
func (c *Call) encodings() (answer, body string) {
	if c.alias != nil || c.light {
		return "", ""
	}
	return acceptEncoding(c.Header.Get("Accept-Encoding")), c.Header.Get("Content-Encoding")
}

// frame is how a call wants answers that come in pieces.
func (c *Call) frame() framing {
	if c.alias != nil || c.light {
		return unframed
	}
	return acceptsStream(c.Header.Get("Accept"))
}

// headerLength is how much of a call's body is JSON; see headerLength.
func (a *API) headerLength(call *Call, length int64) (int64, error) {
	if call.alias == nil {
		return headerLength(call.Header.Get("Inference-Header-Content-Length"), length)
	}
	return typedLength(a.platform.Binary, call.Header.Get("Content-Type"), length)
}

// typedLength reads the length from a content type that begins with binary; a body of
// another type is JSON as a whole. The number is read as C does: white space and a sign
// before it, anything behind it.
// Source of rule and texts: GetInferenceHeaderLength of the original 2.73.
func typedLength(binary, contentType string, length int64) (int64, error) {
	at := strings.Index(contentType, binary)
	if at < 0 {
		return length, nil
	}
	if at > 0 {
		return 0, infer.Errorf(infer.InvalidArg, "expect MIME type for binary data starts with '%s', got: %s", binary, clip(contentType))
	}
	text := contentType[len(binary):]
	digits := strings.TrimLeft(text, " \t\n\v\f\r")
	end := 0
	for end < len(digits) && (isDigit(digits[end]) || end == 0 && (digits[0] == '-' || digits[0] == '+')) {
		end++
	}
	n, err := strconv.ParseInt(digits[:end], 10, 64)
	if end == 0 || !isDigit(digits[end-1]) {
		return 0, infer.Errorf(infer.InvalidArg, "Unable to parse inference header size, got: %s", clip(text))
	}
	if err != nil || n < math.MinInt32 || n > math.MaxInt32 {
		return 0, infer.Errorf(infer.InvalidArg, "Unable to parse inference header size, value is out of range, got: %s", clip(text))
	}
	if n < 0 || length >= 0 && n > length {
		return 0, infer.Errorf(infer.InvalidArg, "inference header size should be in range (0, %d), got: %s", max(length, 0), clip(text))
	}
	return n, nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// typed puts the length of an answer's JSON part where the platform has it.
func (a *API) typed(call *Call, reply *Reply) {
	if call.alias == nil || !a.platform.AnswerBinary || reply.HeaderLength < 0 {
		return
	}
	reply.ContentType = a.platform.Binary + strconv.FormatInt(reply.HeaderLength, 10)
	reply.HeaderLength = -1
}
