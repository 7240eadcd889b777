package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"jpintel/billing"
	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

// smallDisk names the folder on which a process mounts a small file system of
// its own before it begins.
const smallDisk = "JPINTEL_TEST_SMALL_DISK"

func init() {
	if dir := os.Getenv(smallDisk); dir != "" {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
			fmt.Printf(`{"msg":"mount refused: %v"}`+"\n", err)
			os.Exit(1)
		}
	}
}

// S12: the disk is full, for real, while the upstream asks to come back later.
// Nothing leaves that could not be recorded, the log says so, and with room it
// goes on.
func TestS12TheDiskIsFull(t *testing.T) {
	t.Parallel()
	k := newKillScene(t, modelgatetest.Options{},
		modelgatetest.Rule{Match: modelgatetest.Match{Method: "POST"}, At: modelgatetest.AtBeforeAuth, Do: "status:503 code:not_started retry_after:1"})
	dir := t.TempDir()
	cmd := procCommand([]string{"serve"}, append(procEnv(filepath.Join(dir, "jpintel.db")), append(k.env(), smallDisk+"="+dir)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, // to mount without being root
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	k.procServer = procServeCommand(t, &apiClient{token: procToken}, cmd, func(p *proc) { skipWithoutDisk(t, p) })
	disk := filepath.Join("/proc", fmt.Sprint(k.cmd.Process.Pid), "root", dir)
	k.db = filepath.Join(disk, "jpintel.db")
	if _, err := os.Stat(k.db); err != nil {
		t.Skip("this machine does not show other processes' file systems:", err)
	}
	k.signUp("cus_a")
	k.struck(0)
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 16<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	procUntil(t, "the log tells of it", func() bool { return strings.Count(k.out.String(), "database or disk is full") > 2 })
	k.must(os.Remove(filler))
	k.up.ClearFaults()
	k.becomes("cus_a", billing.Ready)
	k.said["the log"] = k.out.String()
	k.signal(syscall.SIGSTOP) // its disk goes with it
	k.look(func(db *store.DB) { k.world(db).Settled(t) })
	k.signal(syscall.SIGCONT)
	if state := k.up.State(); len(state.Groups) != 1 || len(state.Keys) != 1 {
		t.Errorf("%d groups, %d keys", len(state.Groups), len(state.Keys))
	}
}

// skipWithoutDisk skips the test where a process may not have a file system.
func skipWithoutDisk(t *testing.T, p *proc) {
	if p.out.contains("mount refused") {
		t.Skip("this machine has no file systems for tests:", p.out)
	}
}
