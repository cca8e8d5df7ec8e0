// Package pyenv finds the Python interpreter and the environment of a model: those that its
// config names, unpacked where they are an archive, or the worker's own. Source of the rules for
// EXECUTION_ENV_PATH: README.md of Triton's Python backend, "Creating Custom Execution
// Environments".
package pyenv
