package picker

import (
	"encoding/json"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds"
)

// Where a choice stands in what Envoy is told: the namespace that its load balancing
// policies read, and one for access logs.
const (
	BalanceNamespace = "envoy.lb"
	LogNamespace     = "sluice.picker"
)

// askBody lets the call's headers wait for the beginning of its body.
func askBody() *procv3.ProcessingResponse {
	return &procv3.ProcessingResponse{
		Response: &procv3.ProcessingResponse_RequestHeaders{RequestHeaders: &procv3.HeadersResponse{}},
		ModeOverride: &modev3.ProcessingMode{RequestBodyMode: modev3.ProcessingMode_BUFFERED_PARTIAL,
			ResponseHeaderMode: modev3.ProcessingMode_SKIP},
	}
}

// chosen words a pick. What a caller wrote into the headers of a choice goes.
func chosen(said *Call, pick Pick, address string, body bool, h *head) *procv3.ProcessingResponse {
	common := &procv3.CommonResponse{HeaderMutation: &procv3.HeaderMutation{}}
	why := &structpb.Struct{Fields: map[string]*structpb.Value{"why": structpb.NewStringValue(string(pick.Why))}}
	meta := &structpb.Struct{Fields: map[string]*structpb.Value{LogNamespace: structpb.NewStructValue(why)}}
	pickText := string(pick.Why)
	if address == "" {
		common.HeaderMutation.RemoveHeaders = []string{xds.DestinationHeader}
	} else {
		pickText = pick.Gateway + " " + pickText
		common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, set(xds.DestinationHeader, address))
		why.Fields["gateway"] = structpb.NewStringValue(pick.Gateway)
		meta.Fields[BalanceNamespace] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			xds.DestinationHeader: structpb.NewStringValue(address)}})
	}
	common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, set(xds.PickHeader, pickText))
	if p := &pick.Placement; p.Key != "" || p.Stream != 0 {
		common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, set(infer.PlacementHeader, p.String()))
	}
	if h.grpc && !h.named && said.Model != "" && plain(said.Model) && plain(said.Version) {
		// Envoy's routes by model go by these; the message it does not read.
		common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, set(xds.ModelHeader, said.Model))
		if said.Version != "" {
			common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, set(xds.VersionHeader, said.Version))
		}
		common.ClearRouteCache = true
	}
	out := &procv3.ProcessingResponse{DynamicMetadata: meta}
	if body {
		out.Response = &procv3.ProcessingResponse_RequestBody{RequestBody: &procv3.BodyResponse{Response: common}}
	} else {
		out.Response = &procv3.ProcessingResponse_RequestHeaders{RequestHeaders: &procv3.HeadersResponse{Response: common}}
	}
	return out
}

// plain says that a text can be a header's value.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// refusal tells the caller that its sequence has ended, or may be at a gateway that can't be
// asked: UNAVAILABLE, and 503, with the pick's reason. It must begin a new one; nothing is
// begun for it unasked.
func refusal(h *head, c *Call, pick Pick) *procv3.ProcessingResponse {
	id := strings.TrimPrefix(c.Sequence, "s:")
	text := fmt.Sprintf("sequence %s of model '%s' has ended: the gateway '%s' that had it is gone; begin a new sequence with the START flag",
		id, c.Model, pick.Owner)
	if pick.Why == WhyUnplaced {
		text = fmt.Sprintf("sequence %s of model '%s' may be at a gateway that does not answer: try again, or begin a new sequence with the START flag",
			id, c.Model)
	}
	r := &procv3.ImmediateResponse{Details: string(pick.Why),
		Headers: &procv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{set(xds.ReasonHeader, string(pick.Why))}}}
	if h.grpc {
		r.Status = &typev3.HttpStatus{Code: typev3.StatusCode_OK}
		r.GrpcStatus = &procv3.GrpcStatus{Status: uint32(codes.Unavailable)}
		r.Body = []byte(text)
	} else {
		r.Status = &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable}
		r.Headers.SetHeaders = append(r.Headers.SetHeaders, set("content-type", "application/json"))
		doc, err := json.Marshal(map[string]string{"error": text})
		if err != nil { // strings have no fault; the text is better than nothing
			doc = []byte(text)
		}
		r.Body = doc
	}
	return &procv3.ProcessingResponse{Response: &procv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: r}}
}
