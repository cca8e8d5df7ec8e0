package httpapi

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func TestStatusOfEveryCode(t *testing.T) {
	want := map[infer.Code]int{infer.Unknown: 400, infer.InvalidArg: 400, infer.AlreadyExists: 400, infer.Cancelled: 400,
		infer.Unauthenticated: 401, infer.PermissionDenied: 403, infer.NotFound: 404, infer.ResourceExhausted: 429,
		infer.Internal: 500, infer.Unsupported: 501, infer.Unavailable: 503}
	codes := infer.Codes()
	if len(codes) != len(want) {
		t.Fatalf("%d codes, the table has %d", len(codes), len(want))
	}
	for _, c := range codes {
		if got := Status(c); got != want[c] {
			t.Errorf("%s: got %d, want %d", c, got, want[c])
		}
	}
}

func TestRefusalsSayWhy(t *testing.T) {
	for _, c := range []struct {
		err                 error
		status              int
		reason, retry, body string
	}{
		{infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "[request id: r4] Exceeds maximum queue size"), 503,
			"queue_full", "1", `{"error":"[request id: r4] Exceeds maximum queue size"}`},
		{fmt.Errorf("worker: %w", context.DeadlineExceeded), 400, "deadline", "", `{"error":"worker: context deadline exceeded"}`},
		{infer.Errorf(infer.NotFound, "no \"x\"\n"), 404, "", "", `{"error":"no \"x\"\n"}`},
	} {
		f := &fake{open: func(context.Context, *infer.Envelope) error { return c.err }}
		got := ask(t.Context(), newFakeAPI(f, APIConfig{}), "POST", "/v2/models/m/infer", "{}", nil)
		if got.status != c.status || got.fields[ReasonHeader] != c.reason || got.fields["Retry-After"] != c.retry ||
			got.body != c.body || got.typ != typeJSON {
			t.Errorf("%v: got %+v", c.err, got)
		}
	}
}
