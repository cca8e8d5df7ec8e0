package fil

import (
	"fmt"
	"slices"

	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

var taskNames = map[forest.Task]string{
	forest.BinaryClassifier: "binary classifier", forest.Regressor: "regressor", forest.MultiClassifier: "classifier",
	forest.Ranking: "ranker", forest.IsolationForest: "isolation forest",
}

// realName is the type that a forest computes in.
func realName(f *forest.Forest) string {
	if f.Wide {
		return "FP64"
	}
	return "FP32"
}

// how is what answers are made of a row's predictions.
type how int

const (
	asTheyAre how = iota // sums, or probabilities of several classes
	both                 // of one probability, that of the class 0 and its own
	overBound            // 1 for those over the threshold, else 0
	largest              // the number of the class that has the largest
)

// output is how a model answers.
type output struct {
	how              how
	targets, classes int // of the predictions
	shape            []int64
	threshold        float64
}

func newOutput(f *forest.Forest, s *settings) output {
	o := output{targets: f.Targets, classes: f.Classes, threshold: s.threshold}
	switch {
	case !s.classifies(f) || s.proba:
	case f.Classes == 1:
		o.how = overBound
	default:
		o.how = largest
	}
	return o
}

// width is how many values a row's answer has.
func (o output) width() int {
	switch o.how {
	case both:
		return o.targets * 2
	case largest:
		return o.targets
	}
	return o.targets * o.classes
}

// dims are the output's dims where a config has none.
func (o output) dims() []int64 {
	if o.how == largest || o.classes == 1 {
		return []int64{int64(o.targets)}
	}
	if o.targets == 1 {
		return []int64{int64(o.classes)}
	}
	return []int64{int64(o.targets), int64(o.classes)}
}

// fit takes the dims of a row that the config has. Two values of a binary classifier's probabilities are for it to choose.
func (o *output) fit(config []int64, s *settings, f *forest.Forest) error {
	dims := slices.Clone(config)
	n, open := int64(1), -1
	for i, d := range dims {
		if d < 0 {
			if open >= 0 {
				return fmt.Errorf("the dims of '%s' are %v, and one of them at most may be -1", outputName, config)
			}
			open = i
			continue
		}
		n *= d
		if n > 1<<32 || n < 0 {
			return fmt.Errorf("the dims of '%s' are %v, which is too much", outputName, config)
		}
	}
	if o.how == asTheyAre && o.classes == 1 && s.proba && s.classifies(f) && open < 0 && n == 2*int64(o.targets) {
		o.how = both
	}
	want := int64(o.width())
	switch {
	case open >= 0 && n > 0 && want%n == 0:
		dims[open] = want / n
	case open >= 0 || n != want:
		return fmt.Errorf("a row's answer of this %s has %d values, and the dims of '%s' are %v", taskNames[f.Task], want, outputName, config)
	}
	o.shape = dims
	return nil
}

// real is a type that forests compute in and tensors have.
type real interface{ ~float32 | ~float64 }

// answer makes the answers of rows of predictions, in the type of the output.
func answer[R, W real](o *output, from []R, to []W) {
	switch o.how {
	case asTheyAre:
		for i, v := range from {
			to[i] = W(v)
		}
	case both:
		for i, v := range from {
			to[2*i], to[2*i+1] = W(1-v), W(v)
		}
	case overBound:
		for i, v := range from {
			to[i] = 0
			if float64(v) > o.threshold {
				to[i] = 1
			}
		}
	case largest:
		for i := range to {
			row := from[i*o.classes : (i+1)*o.classes]
			most := 0
			for c, v := range row {
				if v > row[most] {
					most = c
				}
			}
			to[i] = W(most)
		}
	}
}
