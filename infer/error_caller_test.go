package infer

import (
	"errors"
	"fmt"
	"testing"
)

func TestIsCallerError(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"marked":                      {CallerErrorf("no JSON"), true},
		"wrapped by fmt":              {fmt.Errorf("body: %w", CallerErrorf("no JSON")), true},
		"wrapped by an unmarked one":  {Errorf(Internal, "parameters: %w", CallerErrorf("no object")), true},
		"unmarked":                    {Errorf(Internal, "the worker sent no batch"), false},
		"a bug":                       {Recovered(1), false},
		"no Error at all":             {errors.New("x"), false},
		"nil":                         {nil, false},
		"unmarked inside of unmarked": {Errorf(Internal, "a: %w", Errorf(InvalidArg, "b")), false},
	} {
		if got := IsCallerError(c.err); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	if got := CodeOf(CallerErrorf("x")); got != Internal {
		t.Errorf("the code is %v, want %v as Triton answers it", got, Internal)
	}
}
