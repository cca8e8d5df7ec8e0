// Package openvino is the backend of OpenVINO's models, and of what OpenVINO reads beside its own: ONNX, TensorFlow's SavedModel
// and GraphDef, TensorFlow Lite and PaddlePaddle. It has the parameters of Triton's backend of that name; models of Triton's TensorFlow
// backend are served by it as well (NewTensorFlow).
//
// A version is compiled once, for the CPU; its instances are infer requests that share the weights. Inputs are read and outputs
// written where they lie. With a batch dimension dimension 0 is made to be any from 1 to max_batch_size, so that no batch is
// padded. An Instance is for one goroutine; the rest may be called by any number. Documentation for users: docs/engines.md.
package openvino
