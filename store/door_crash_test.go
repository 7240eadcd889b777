package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
)

// writeUntilKilled says each number once it is acknowledged.
func writeUntilKilled(path string) error {
	db, err := store.Open(context.Background(), path, store.Options{Server: true})
	if err != nil {
		return err
	}
	var next int
	if err := db.Reader(context.Background()).QueryRow(`SELECT COALESCE(max(n), 0) + 1 FROM numbers`).Scan(&next); err != nil {
		return err
	}
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for n := next + w; ; n += 8 {
				if err := db.Write(context.Background(), insert(n)); err != nil {
					fmt.Println(err)
					return
				}
				fmt.Println(n)
			}
		})
	}
	writers.Wait()
	return nil
}

func TestAcknowledgedWritesSurviveAKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	db := open(t, path, store.Options{Server: true})
	addNumbers(t, db)
	shut(t, db)
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	var acknowledged []string
	for range rounds {
		p := start(t, "write until killed", path)
		for range 1 + rand.IntN(500) { // then it dies, at any point of its work
			if !p.out.Scan() {
				break
			}
			acknowledged = append(acknowledged, p.out.Text())
		}
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		lines, _ := p.rest()
		acknowledged = append(acknowledged, lines...)
	}
	present := map[string]bool{}
	for _, n := range numbers(t, storetest.Open(t, path)) {
		present[strconv.Itoa(n)] = true
	}
	for _, n := range acknowledged {
		if !present[n] {
			t.Errorf("%q was said to be written, and is not in the file", n)
		}
	}
}
