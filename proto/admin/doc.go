// Package admin is the generated code of admin.proto: what sluice has beside the v2
// inference protocol. Nothing here is written by hand but this comment.
package admin
