package rls

import (
	"context"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-serve/sluice/infer"
)

// Call is what a descriptor says.
type Call struct {
	Principal string
	Groups    []string
	Model     string
	Action    infer.Action
	Remote    netip.Addr
	Hits      int64 // 0: the question is only whether a call would pass
	Bytes     int64 // 0: not known
}

// Verdict is what the limits say of a Call.
type Verdict struct {
	Over   bool
	Rule   string        // the rule that refused, or that has the least left; "": none counts
	Rate   float64       // of that rule, units a second
	Left   int64         // of that rule
	Retry  time.Duration // when trying again may succeed
	Reason infer.Reason
}

// Decide counts a call, or looks whether it would pass. It does not block for long.
type Decide func(ctx context.Context, c Call) Verdict

// The bounds of one question.
const (
	maxDescriptors = 64
	maxEntries     = 64
	maxGroups      = 32
	maxHits        = math.MaxInt32
	maxValue       = 1024 // bytes of an entry that are looked at; a path may have more
)

// Server answers ShouldRateLimit.
type Server struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	decide Decide
}

// New makes a Server of limits.
func New(decide Decide) *Server { return &Server{decide: decide} }

// Register serves on r.
func (s *Server) Register(r grpc.ServiceRegistrar) { ratelimitv3.RegisterRateLimitServiceServer(r, s) }

// ShouldRateLimit is the service's one method.
func (s *Server) ShouldRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	if n := len(req.GetDescriptors()); n > maxDescriptors {
		return nil, status.Errorf(codes.InvalidArgument, "%d descriptors, the most is %d", n, maxDescriptors)
	}
	out := &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}
	var worst Verdict
	for _, d := range req.GetDescriptors() {
		call, err := read(d)
		if err != nil {
			return nil, err
		}
		call.Hits = min(max(int64(req.GetHitsAddend()), 1), maxHits)
		if own := d.GetHitsAddend(); own != nil {
			call.Hits = int64(min(own.GetValue(), maxHits))
		}
		if d.GetIsNegativeHits() { // nothing is given back on a proxy's word
			call.Hits = 0
		}
		v := s.decide(ctx, call)
		out.Statuses = append(out.Statuses, statusOf(v))
		if v.Over {
			out.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT
			if !worst.Over || v.Retry > worst.Retry {
				worst = v
			}
		}
	}
	if worst.Over {
		out.ResponseHeadersToAdd = headers(worst)
	}
	return out, nil
}

// read turns a descriptor into a call.
func read(d *ratelimitcommonv3.RateLimitDescriptor) (c Call, err error) {
	if n := len(d.GetEntries()); n > maxEntries {
		return c, status.Errorf(codes.InvalidArgument, "%d entries in a descriptor, the most is %d", n, maxEntries)
	}
	var method, path, action string
	for _, e := range d.GetEntries() {
		v := e.GetValue()
		if e.GetKey() != "path" {
			v = name(v)
		}
		switch e.GetKey() {
		case "principal":
			c.Principal = v
		case "group":
			if len(c.Groups) < maxGroups {
				c.Groups = append(c.Groups, v)
			}
		case "model":
			c.Model = v
		case "action":
			action = v
		case "method":
			method = v
		case "path":
			path = v
		case "remote_address":
			if c.Remote, err = netip.ParseAddr(v); err != nil {
				return c, status.Errorf(codes.InvalidArgument, "remote_address %q is no address", v)
			}
			c.Remote = c.Remote.WithZone("") // which Envoy does not give
		case "bytes":
			if c.Bytes, err = strconv.ParseInt(v, 10, 64); err != nil || c.Bytes < 0 {
				return c, status.Errorf(codes.InvalidArgument, "bytes %q is no size", v)
			}
		}
	}
	c.Action = infer.ActionInference
	if path != "" {
		var model string
		if c.Action, model = Target(method, path); model != "" { // the path decides, not a header
			c.Model = name(model)
		}
	}
	if action == "" {
		return c, nil
	}
	for _, a := range infer.Actions() {
		if a.String() == action {
			c.Action = a
			return c, nil
		}
	}
	return c, status.Errorf(codes.InvalidArgument, "there is no action %q", action)
}

// name is as much of a value as is looked at. What can be in no name is left out: an error
// would be Envoy's reason to let the call pass.
func name(v string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(v[:min(len(v), maxValue)], ""), "\x00", "")
}

func statusOf(v Verdict) *ratelimitv3.RateLimitResponse_DescriptorStatus {
	out := &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: ratelimitv3.RateLimitResponse_OK}
	if v.Over {
		out.Code = ratelimitv3.RateLimitResponse_OVER_LIMIT
		out.DurationUntilReset = durationpb.New(v.Retry)
	}
	if v.Rule == "" || v.Rate <= 0 {
		return out
	}
	limit := &ratelimitv3.RateLimitResponse_RateLimit{Name: v.Rule, Unit: ratelimitv3.RateLimitResponse_RateLimit_SECOND}
	rate := v.Rate
	for _, larger := range []struct {
		unit ratelimitv3.RateLimitResponse_RateLimit_Unit
		of   float64
	}{{ratelimitv3.RateLimitResponse_RateLimit_MINUTE, 60}, {ratelimitv3.RateLimitResponse_RateLimit_HOUR, 60}, {ratelimitv3.RateLimitResponse_RateLimit_DAY, 24}} {
		if rate >= 1 {
			break
		}
		rate, limit.Unit = rate*larger.of, larger.unit
	}
	limit.RequestsPerUnit = uint32(min(math.Round(rate), math.MaxUint32))
	out.CurrentLimit = limit
	out.LimitRemaining = uint32(min(max(v.Left, 0), math.MaxUint32))
	return out
}

// headers are those of the gateway's own refusals.
func headers(v Verdict) []*corev3.HeaderValue {
	seconds := int64((v.Retry + time.Second - 1) / time.Second)
	return []*corev3.HeaderValue{{Key: "retry-after", Value: strconv.FormatInt(max(seconds, 1), 10)}, {Key: "x-sluice-reason", Value: string(v.Reason)}}
}
