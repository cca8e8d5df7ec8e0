// Package models is `sluice models`: it lists, loads, unloads and watches the models of
// a running server over the model repository extension of the v2 HTTP protocol. Only
// cmd uses it; it starts no server and keeps no state.
package models
