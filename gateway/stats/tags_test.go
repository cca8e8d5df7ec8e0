package stats

import (
	"strings"
	"testing"
)

// Tags that can't be labels cost neither the load of their model nor a scrape.
func TestTagsThatAreNoLabels(t *testing.T) {
	r := New(Config{CounterLatencies: true, SummaryLatencies: true}, Deps{})
	bad := map[string]string{"": "1", "le": "2", "quantile": "3", "__name__": "4", "model": "five", "version": "six", "\xff": "7", "text": "\xff"}
	for name := range bad {
		r.Model("m-"+strings.ToValidUTF8(name, "x"), 1, map[string]string{name: bad[name], "team": "a-b"}, true)
	}
	text := scrape(t, r, "")
	for name := range bad {
		want := `nv_inference_request_success{model="m-` + strings.ToValidUTF8(name, "x") + `",team="a-b",`
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, `"five"`) || strings.Contains(text, `"six"`) || !strings.Contains(text, `text="`+"\ufffd"+`"`) {
		t.Errorf("labels of ours were replaced, or a value is gone:\n%.600s", text)
	}
	// two loads of one version that differ in such a tag only are one record
	first, second := r.Model("n", 1, map[string]string{"le": "1"}, true), r.Model("n", 1, nil, true)
	if first != second {
		t.Error("two records with the same labels")
	}
	scrape(t, r, "")
}
