package billing_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// floats finds binary floating point in one file: the types, what converts to
// them and literals that are some.
func floats(set *token.FileSet, file *ast.File) (found []string) {
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.Ident:
			if strings.Contains(strings.ToLower(n.Name), "float") || n.Name == "complex128" || n.Name == "complex64" {
				found = append(found, set.Position(n.Pos()).String()+": "+n.Name)
			}
		case *ast.BasicLit:
			if n.Kind == token.FLOAT || n.Kind == token.IMAG {
				found = append(found, set.Position(n.Pos()).String()+": "+n.Value)
			}
		}
		return true
	})
	return found
}

// Nothing under billing touches binary floating point.
func TestNoFloatsNearMoney(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, where := range floats(set, file) {
			t.Errorf("%s: money is decimal text and decimals, never binary floating point", where)
		}
		return nil
	})
	if err != nil || files < 2 {
		t.Fatalf("%d files, %v", files, err)
	}
}

// The search has to find what it is for.
func TestFloatsAreFound(t *testing.T) {
	for source, want := range map[string]int{
		`var x float64`: 1, `var x = 0.5`: 1, `func f(d D) { d.InexactFloat64() }`: 1, `import "strconv"; var _, _ = strconv.ParseFloat("", 0)`: 1,
		`var x = 1e3`: 1, `var x = 10`: 0, `var x = "0.5"`: 0,
	} {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, "x.go", "package x; "+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := floats(set, file); len(got) != want {
			t.Errorf("%s: found %q, want %d", source, got, want)
		}
	}
}
