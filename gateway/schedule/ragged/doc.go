// Package ragged computes what of a batch is not one row after the other: inputs whose
// requests have shapes of their own (allow_ragged_batch), inputs that all requests have
// in common (is_shape_tensor), inputs that describe the batch (batch_input), and outputs
// that are cut by an input's shapes (batch_output).
//
// A Plan is what the config says of that; it is read-only and used by any number of
// goroutines. The schedulers' driver lays batches out by it, and so does warm-up.
//
// Source: messages ModelInput, BatchInput and BatchOutput, proto/modelconfig/model_config.proto;
// the values are those of BackendInputCollector::ProcessBatchInput and
// BackendOutputResponder::ProcessBatchOutput of the original.
package ragged
