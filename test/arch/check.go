package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The limits on sizes, in lines.
const (
	maxFile     = 800
	maxFunction = 80
)

// Fault is one broken rule.
type Fault struct {
	Where string // file:line, or a folder
	What  string
}

// String is the fault in one line.
func (f Fault) String() string { return f.Where + ": " + f.What }

// checker holds what one Check gathers.
type checker struct {
	module  string
	heights map[string]int
	fset    *token.FileSet
	faults  []Fault
	// commented says of each package folder whether a comment stands on its package
	// clause.
	commented map[string]bool
	// backends are the names that the gateway must not know.
	backends backendNames
}

// Check walks the Go files of tree, which is the module's root, and gives back every
// fault in the order of the files. Heights are those of ParseLayout.
func Check(tree fs.FS, module string, heights map[string]int) ([]Fault, error) {
	c := &checker{module: module, heights: heights, fset: token.NewFileSet(), commented: map[string]bool{}}
	var err error
	if c.backends, err = readBackends(tree); err != nil {
		return nil, err
	}
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			base := entry.Name()
			if name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "models") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(tree, path.Join(name, "go.mod")); name != "." && err == nil {
				return fs.SkipDir // another module
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		return c.file(name, source)
	})
	if err != nil {
		return nil, err
	}
	folders := make([]string, 0, len(c.commented))
	for folder, ok := range c.commented {
		if !ok {
			folders = append(folders, folder)
		}
	}
	slices.Sort(folders)
	for _, folder := range folders {
		c.faults = append(c.faults, Fault{folder, "no package comment"})
	}
	return c.faults, nil
}

// file checks one Go file.
func (c *checker) file(name string, source []byte) error {
	f, err := parser.ParseFile(c.fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	folder := path.Dir(name)
	test := strings.HasSuffix(name, "_test.go")
	if !test {
		c.commented[folder] = c.commented[folder] || documented(f)
	}
	if ast.IsGenerated(f) {
		return nil
	}
	if formatted, err := format.Source(source); err != nil || !bytes.Equal(formatted, source) {
		c.fault(f.Package, "not formatted with gofmt")
	}
	if n := bytes.Count(source, []byte("\n")); n > maxFile {
		c.faults = append(c.faults, Fault{name, fmt.Sprintf("%d lines, at most %d", n, maxFile)})
	}
	if !test {
		c.imports(f, folder)
	}
	if !test && (folder == gateway || strings.HasPrefix(folder, gateway+"/")) {
		c.literals(f)
	}
	c.functions(f)
	c.calls(f, test, test || f.Name.Name == "main" || strings.HasPrefix(folder, "cmd/"))
	return nil
}

// documented says whether the file carries its package's comment.
func documented(f *ast.File) bool {
	text := f.Doc.Text()
	return strings.HasPrefix(text, "Package "+f.Name.Name+" ") || f.Name.Name == "main" && strings.HasPrefix(text, "Command ")
}

// imports checks that the file's folder imports lower ones only, or its own.
func (c *checker) imports(f *ast.File, folder string) {
	own, height := c.row(folder)
	if own == "" {
		c.fault(f.Package, "folder "+folder+" is not in the layout table of README.md")
		return
	}
	for _, spec := range f.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.HasPrefix(name, c.module+"/") {
			continue
		}
		target := strings.TrimPrefix(name, c.module+"/")
		row, below := c.row(target)
		if row != own && below >= height {
			c.fault(spec.Pos(), fmt.Sprintf("%s (height %d) imports %s (height %d)", folder, height, target, below))
		}
	}
}

// row finds the longest row of the layout table that holds the folder.
func (c *checker) row(folder string) (string, int) {
	for at := folder; at != "." && at != "/"; at = path.Dir(at) {
		if height, ok := c.heights[at]; ok {
			return at, height
		}
	}
	return "", 0
}

// functions checks names and sizes of the declared functions.
func (c *checker) functions(f *ast.File) {
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if fn.Name.Name == "init" && fn.Recv == nil {
			c.fault(fn.Pos(), "func init: give what is needed at construction")
		}
		if n := c.fset.Position(fn.End()).Line - c.fset.Position(fn.Pos()).Line + 1; n > maxFunction {
			c.fault(fn.Pos(), fmt.Sprintf("%s: %d lines, at most %d", fn.Name.Name, n, maxFunction))
		}
	}
}

// calls checks for time.Sleep and for contexts out of nowhere.
func (c *checker) calls(f *ast.File, test, mayRoot bool) {
	clock, contexts := importName(f, "time"), importName(f, "context")
	bubbles := importName(f, "testing/synctest") != ""
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch {
		case clock != "" && pkg.Name == clock && sel.Sel.Name == "Sleep" && !(test && bubbles):
			c.fault(sel.Pos(), "time.Sleep outside a synctest bubble")
		case contexts != "" && pkg.Name == contexts && (sel.Sel.Name == "Background" || sel.Sel.Name == "TODO") && !mayRoot:
			c.fault(sel.Pos(), "context."+sel.Sel.Name+" outside cmd and tests")
		}
		return true
	})
}

// importName is the name under which the file sees a package, "" where it doesn't.
func importName(f *ast.File, name string) string {
	for _, spec := range f.Imports {
		if spec.Path.Value != strconv.Quote(name) {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(name)
	}
	return ""
}

func (c *checker) fault(at token.Pos, what string) {
	p := c.fset.Position(at)
	c.faults = append(c.faults, Fault{fmt.Sprintf("%s:%d", p.Filename, p.Line), what})
}

// ParseLayout reads the folders and their heights from the layout table of README.md:
// rows of the form "| `folder/{a,b}` | what it holds | height |", several folders in
// one cell divided by commas outside the backquotes.
func ParseLayout(readme string) (map[string]int, error) {
	heights := map[string]int{}
	for line := range strings.Lines(readme) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || !strings.Contains(cells[0], "`") {
			continue
		}
		height, err := strconv.Atoi(strings.TrimSpace(cells[2]))
		if err != nil {
			continue
		}
		quoted := strings.Split(cells[0], "`")
		for i := 1; i < len(quoted); i += 2 {
			for _, folder := range expand(strings.TrimSuffix(quoted[i], "/")) {
				heights[folder] = height
			}
		}
	}
	if len(heights) == 0 {
		return nil, fmt.Errorf("README.md has no layout table")
	}
	return heights, nil
}

// expand writes out one pair of braces: a/{b,c} is a/b and a/c.
func expand(folder string) []string {
	before, rest, ok := strings.Cut(folder, "{")
	if !ok {
		return []string{folder}
	}
	inner, after, _ := strings.Cut(rest, "}")
	var all []string
	for part := range strings.SplitSeq(inner, ",") {
		all = append(all, strings.TrimSuffix(before+part+after, "/"))
	}
	return all
}
