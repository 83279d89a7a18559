Validator,WEIR_VERSION,1.0.0
Validator,DRIVER_VERSION,soft 13.0
Validator,DEVICE,Weir Software Device
