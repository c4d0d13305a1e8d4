"""What drivers of virtual machines share: the accelerator, the kernel, disks, the process and its monitor."""
