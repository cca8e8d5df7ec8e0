// Package mesh is the generated code of mesh.proto: what an endpoint picker of the mesh asks
// gateways. Nothing here is written by hand but this comment.
package mesh
