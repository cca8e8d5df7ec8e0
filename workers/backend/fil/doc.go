// Package fil is the backend of forests of decision trees: models of XGBoost, LightGBM, scikit-learn and treelite, with
// the file names, tensors and parameters of Triton's backend of that name. It reads and evaluates them by package
// forest, on the CPU, in the type that the model's own library computes in.
//
//   - input input__0: FP32 or FP64 [features], rows first.
//   - output output__0: FP32 or FP64, of a row a class, a probability for each, or the sums of a regressor.
//
// What a config leaves out is completed from the file: its format, whether it is a classifier, the tensors. An Instance is
// for one goroutine; the rest may be called by any number. Documentation for users: docs/engines.md.
package fil
