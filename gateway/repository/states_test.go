package repository

import (
	"strings"
	"testing"
)

func TestInitialStates(t *testing.T) {
	const config = `backend: "identity" max_batch_size: 1 input { name: "INPUT0" data_type: TYPE_INT8 dims: 1 } output { name: "OUTPUT0" data_type: TYPE_INT8 dims: 1 }
		sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_INT8 dims: 2 initial_state { name: "i" data_type: TYPE_INT8 dims: 2 data_file: "FILE" } } }`
	for _, row := range []struct{ name, file, want string }{
		{"there", "seed", ""},
		{"missing", "none", "initial state of 'S': failed to open text file for read 'initial_state/none': no such file"},
		{"outside", "../secret", "is outside model directory"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r, err := load(t, &fakeWorkers{}, Config{}, map[string]string{"m/config.pbtxt": strings.Replace(config, "FILE", row.file, 1), "m/1/": "",
				"m/initial_state/seed": "ab", "m/secret": "cd"})
			if row.want != "" {
				if err == nil || !strings.Contains(err.Error(), row.want) {
					t.Errorf("got %v, want %s", err, row.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			m, err := r.Acquire(t.Context(), "m", "")
			if err != nil {
				t.Fatal(err)
			}
			defer m.Release()
			if got := string(m.States()["seed"]); got != "ab" {
				t.Errorf("got %q", got)
			}
		})
	}
}
