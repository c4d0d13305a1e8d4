"""Parts that drivers of virtual machines share: accelerator, kernel, disks, process and monitor."""
