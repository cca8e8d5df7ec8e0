package arch

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Where the rule holds, and where the names come from: a folder for each backend, and the
// table of Triton's own.
const (
	gateway      = "gateway"
	backendDir   = "workers/backend"
	backendTable = backendDir + "/triton/triton.json"
)

// words are names of backends that mean other things, too: they count where something of a
// backend is compared with them.
var words = map[string]bool{"identity": true, "repeat": true, "square": true, "python": true, "triton": true}

// backendNames are names of backends, of their platforms and of their model files.
type backendNames map[string]bool

// readBackends lists the names; a tree without backends has none.
func readBackends(tree fs.FS) (backendNames, error) {
	names := backendNames{}
	folders, err := fs.ReadDir(tree, backendDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range folders {
		if f.IsDir() && f.Name() != "backendtest" {
			names[f.Name()] = true
		}
	}
	data, err := fs.ReadFile(tree, backendTable)
	if errors.Is(err, fs.ErrNotExist) {
		return names, nil
	}
	if err != nil {
		return nil, err
	}
	var table []struct {
		Name    string
		Formats []struct{ Platform, Filename string }
	}
	if err := json.Unmarshal(data, &table); err != nil {
		return nil, fmt.Errorf("%s: %w", backendTable, err)
	}
	for _, b := range table {
		names[b.Name] = true
		for _, f := range b.Formats {
			names[f.Platform], names[f.Filename] = true, true
		}
	}
	delete(names, "")
	return names, nil
}

// nameWord is what may be a name within a text.
var nameWord = regexp.MustCompile(`[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*`)

// of gives the first name that a text has as a word; "" for none.
func (b backendNames) of(text string) string {
	for _, w := range nameWord.FindAllString(text, -1) {
		if b[w] && !words[w] {
			return w
		}
	}
	return ""
}

// literals checks that no text of the file has a backend's name in it, and that nothing of a
// backend is compared with one.
func (c *checker) literals(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			if strings.HasPrefix(path.Join("/", strings.Trim(n.Path.Value, `"`)), "/"+c.module+"/"+backendDir) {
				c.fault(n.Pos(), "the gateway imports a backend")
			}
			return false
		case *ast.BasicLit:
			if name := c.backends.of(stringOf(n)); name != "" {
				c.fault(n.Pos(), "the gateway knows "+name+": what is special about a backend is its own word")
			}
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				c.compared(n.X, n.Y)
				c.compared(n.Y, n.X)
			}
		case *ast.IndexExpr:
			c.compared(n.X, n.Index)
		case *ast.SwitchStmt:
			for _, clause := range n.Body.List {
				for _, e := range clause.(*ast.CaseClause).List {
					c.compared(n.Tag, e)
				}
			}
		}
		return true
	})
}

// compared checks that what is called a backend or a platform is not compared with the name
// of one.
func (c *checker) compared(what, with ast.Expr) {
	lit, ok := with.(*ast.BasicLit)
	if !ok || !words[stringOf(lit)] {
		return
	}
	if name := strings.ToLower(nameOf(what)); strings.Contains(name, "backend") || strings.Contains(name, "platform") {
		c.fault(lit.Pos(), "the gateway knows "+stringOf(lit)+": what is special about a backend is its own word")
	}
}

// nameOf is the last name of an expression: Backend of cfg.Backend, GetBackend of cfg.GetBackend().
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Fun)
	case *ast.IndexExpr:
		return nameOf(e.X)
	}
	return ""
}

// stringOf is the value of a string literal; "" for others.
func stringOf(l *ast.BasicLit) string {
	if l.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(l.Value)
	if err != nil {
		return ""
	}
	return s
}
