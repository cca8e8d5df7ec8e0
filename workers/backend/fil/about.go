package fil

import (
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

// format is a kind of file: its name in the parameter model_type, and that of the file by default.
// Source: docs/model_config.md of Triton's FIL backend.
type format struct {
	format    forest.Format
	modelType string
	file      string
}

// formats are in the order in which a folder is searched.
var formats = []format{
	{forest.XGBoostJSON, "xgboost_json", "xgboost.json"},
	{forest.XGBoostUBJSON, "xgboost_ubj", "xgboost.ubj"},
	{forest.XGBoost, "xgboost", "xgboost.model"},
	{forest.LightGBM, "lightgbm", "model.txt"},
	{forest.Checkpoint, "treelite_checkpoint", "checkpoint.tl"},
}

// about is what the backend says of itself, whether its library is there or not.
func about(library string) backend.Info {
	info := backend.Info{Patches: true, Simultaneous: true, Placements: []*worker.Placement{{Kind: worker.Placement_CPU}},
		Engine: &worker.Engine{Name: Engine, Path: library, Get: "make engine-" + Engine}}
	for _, f := range formats {
		info.Formats = append(info.Formats, &worker.ModelFormat{Filename: f.file, Kind: worker.ModelFormat_FILE})
	}
	return info
}
