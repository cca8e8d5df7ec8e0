// Package triton knows Triton's own backends by what Triton's core knows of them: which
// platforms and which default file names stand for a backend, how many instances it has
// where a config says nothing, and which files make a backend. A gateway has to complete
// and to refuse configs of those backends as Triton does even where no worker has them, or
// no worker can be asked (`sluice check` without workers); a backend that a worker has
// speaks for itself.
//
// The table is data, triton.json, in the form in which a worker says the same of its
// backends in Hello. Its order is that in which Triton tries a folder whose config names no
// backend. Source: constants.h, model_config_utils.cc and backend_model.cc of Triton.
package triton

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-serve/sluice/proto/worker"
)

//go:embed triton.json
var table []byte

// Backends are those of the table, in its order.
func Backends() ([]*worker.Backend, error) {
	var rows []json.RawMessage
	if err := json.Unmarshal(table, &rows); err != nil {
		return nil, fmt.Errorf("triton.json: %w", err)
	}
	all := make([]*worker.Backend, len(rows))
	for i, row := range rows {
		all[i] = &worker.Backend{}
		if err := protojson.Unmarshal(row, all[i]); err != nil {
			return nil, fmt.Errorf("triton.json: backend %d: %w", i, err)
		}
	}
	return all, nil
}
