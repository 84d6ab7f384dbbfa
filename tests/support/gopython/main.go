// Program gopython unpacks a whole CPython into the folder that its argument names.
package main

import (
	"log"
	"os"

	"github.com/kluctl/go-embed-python/python"
)

func main() {
	if _, err := python.NewEmbeddedPythonWithTmpDir(os.Args[1], false); err != nil {
		log.Fatal(err)
	}
}
